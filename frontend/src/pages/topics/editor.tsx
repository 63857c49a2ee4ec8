import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import { transportsQuery } from "@/api/queries";
import { ResourceEditor } from "@/forms/resource-editor";
import { FRESH, topicFields } from "./form";

export function TopicEditor({ name, onClose }: { name?: string; onClose: () => void }) {
  const navigate = useNavigate();
  const transports = useQuery(transportsQuery).data?.items;
  const fields = useMemo(() => topicFields(transports ?? []), [transports]);
  return (
    <ResourceEditor
      kind="topic"
      name={name}
      shape="sheet"
      lead={name ? "The preview shows what each change costs." : "Only the name has no default."}
      nameHint="Parts joined by dots, such as md.eu.equities"
      create="Create topic"
      fields={fields}
      fresh={FRESH}
      onClose={onClose}
      onSaved={(saved) =>
        name ? onClose() : navigate({ to: "/topics/$name", params: { name: saved } })
      }
    />
  );
}
