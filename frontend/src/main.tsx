import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { onSignedOut } from "@/api/client";
import { queries } from "@/app/query-client";
import { router } from "@/app/router";
import { applyTheme, watchSystemTheme } from "@/lib/prefs";
import { TipProvider } from "@/ui/tip";
import { Toaster } from "@/ui/toast";
import "./index.css";

applyTheme();
watchSystemTheme();
onSignedOut(() => {
  if (router.state.location.pathname === "/login") return;
  queries.clear();
  router.navigate({ to: "/login", search: { to: router.state.location.href } });
});

function App() {
  return (
    <QueryClientProvider client={queries}>
      <TipProvider delayDuration={300}>
        <RouterProvider router={router} />
        <Toaster />
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
