import { Check, Copy, Terminal } from "lucide-react";
import { useEffect, useState } from "react";
import { cn } from "@/lib/cn";
import { IconButton } from "./button";

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Clipboards are for secure pages: elsewhere the old way still works.
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <>
      <IconButton
        icon={copied ? Check : Copy}
        label={copied ? "Copied" : label}
        className={cn("size-6", copied && "text-good")}
        onClick={async () => setCopied(await copyText(text))}
      />
      <span role="status" className="sr-only">
        {copied ? "Copied" : ""}
      </span>
    </>
  );
}

/** A line for the shell, ready to be copied. */
export function Command({ text }: { text: string }) {
  return (
    <div className="flex min-h-8 items-center gap-2 rounded-md border bg-canvas py-0.5 pr-1 pl-2.5 font-mono text-xs">
      <Terminal aria-hidden className="size-3.5 shrink-0 text-faint" />
      <code className="min-w-0 flex-1 whitespace-pre-wrap break-all py-1">{text}</code>
      <CopyButton text={text} />
    </div>
  );
}

export function Code({
  text,
  className,
  label,
}: {
  text: string;
  className?: string;
  label?: string;
}) {
  return (
    <div className={cn("relative rounded-md border bg-canvas", className)}>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <section tabIndex={0} aria-label={label ?? "Code"} className="max-h-96 overflow-auto">
        <pre className="w-max p-3 pr-9 font-mono text-xs">{text}</pre>
      </section>
      <span className="absolute top-1 right-1">
        <CopyButton text={text} />
      </span>
    </div>
  );
}
