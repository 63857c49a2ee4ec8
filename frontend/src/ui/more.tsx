import type { ReactNode } from "react";
import { Button } from "@/ui/button";

/** The part of an infinite query that this button needs. */
interface Listed {
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  fetchNextPage: () => unknown;
}

interface MoreProps {
  list: Listed;
  size?: "sm" | "md";
  children?: ReactNode;
}

/** A button that loads the next page of a list, while there is one. */
export function More({ list, size, children = "More" }: MoreProps) {
  return (
    list.hasNextPage && (
      <Button
        {...(size ? { size } : {})}
        busy={list.isFetchingNextPage}
        onClick={() => list.fetchNextPage()}
      >
        {children}
      </Button>
    )
  );
}
