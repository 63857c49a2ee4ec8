import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Toaster } from "sonner";
import { onSignedOut } from "@/api/client";
import { queries } from "@/app/query-client";
import { router } from "@/app/router";
import { applyTheme, isDark, usePrefs, watchSystemTheme } from "@/lib/prefs";
import { TipProvider } from "@/ui/tip";
import "./index.css";

applyTheme();
watchSystemTheme();
onSignedOut(() => {
  if (router.state.location.pathname === "/login") return;
  queries.clear();
  router.navigate({ to: "/login", search: { to: router.state.location.href } });
});

function App() {
  const { theme } = usePrefs();
  return (
    <QueryClientProvider client={queries}>
      <TipProvider delayDuration={300}>
        <RouterProvider router={router} />
        <Toaster
          theme={isDark(theme) ? "dark" : "light"}
          position="bottom-right"
          toastOptions={{ className: "!bg-raised !border-line !text-ink !text-sm !font-sans" }}
        />
      </TipProvider>
    </QueryClientProvider>
  );
}

const host = document.getElementById("root");
if (host) {
  createRoot(host).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
}
