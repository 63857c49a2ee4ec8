import { fileURLToPath } from "node:url";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const control = process.env.TIDECAST_CONTROL_URL ?? "http://127.0.0.1:7480";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  resolve: { alias: { "@": here("./src") } },
  build: {
    outDir: here("../backend/tidecast_control/static"),
    emptyOutDir: true,
    manifest: true,
    target: "es2023",
    // Fonts stay files: inlined they would be in every first load, used or not.
    assetsInlineLimit: 0,
  },
  server: { proxy: { "/api": { target: control, ws: true } } },
  test: {
    environment: "node",
    include: ["test/**/*.test.{ts,tsx}"],
    css: false,
    pool: "threads",
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
