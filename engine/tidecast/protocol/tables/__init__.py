"""Tables of repeated keys and headers: a publication's sender defines them, images expand them."""
