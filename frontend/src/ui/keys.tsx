/** Keys as they are pressed: `"mod+k"`, `"g t"`. */
export function Keys({ keys }: { keys: string }) {
  const mac = typeof navigator !== "undefined" && /Mac|iPhone|iPad/.test(navigator.platform);
  const names = keys.split(/[ +]/).map((key) => (key === "mod" ? (mac ? "⌘" : "Ctrl") : key));
  return (
    <span className="inline-flex gap-0.5" aria-hidden>
      {names.map((name) => (
        <kbd
          key={name}
          className="min-w-4.5 rounded border border-line-strong bg-panel px-1 text-center font-sans text-2xs text-muted capitalize"
        >
          {name}
        </kbd>
      ))}
    </span>
  );
}
