"""Nodes: the engines, their enrolment, and the link to them."""
