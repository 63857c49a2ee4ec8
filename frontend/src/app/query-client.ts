import { QueryClient } from "@tanstack/react-query";
import { ApiError } from "@/api/client";

const isRefusal = ({ status }: ApiError) => status >= 400 && status < 500;

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      refetchOnWindowFocus: true,
      // A refusal stays one; only what may pass is asked again.
      retry: (count, error) =>
        count < 2 &&
        !(error instanceof ApiError && (isRefusal(error) || error.code === "no_answer")),
    },
  },
});
