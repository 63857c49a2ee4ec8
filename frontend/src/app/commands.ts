import { useQuery } from "@tanstack/react-query";
import { systemQuery } from "@/api/queries";
import { commandOf } from "@/lib/copy-as";

/** Command lines that reach this platform: they name its data directory when it is not the default. */
export function useTidecast(): (...words: string[]) => string {
  const directory = useQuery(systemQuery).data?.data_dir;
  return (...words) =>
    commandOf("tidecast", ...words, ...(directory ? ["--data-dir", directory] : []));
}
