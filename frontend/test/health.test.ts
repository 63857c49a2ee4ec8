import { expect, it } from "vitest";
import { healthOf } from "@/app/health";

it("tells a database that is away from other parts that do not work", () => {
  expect(healthOf(200, { process: "ok", postgres: "ok" })).toEqual({
    database: "ok",
    impaired: [],
  });
  expect(healthOf(503, { process: "ok", postgres: "no answer" }).database).toBe("away");
  expect(healthOf(503, { postgres: "ok", "task alerts": "failed: timeout" })).toEqual({
    database: "ok",
    impaired: ["task alerts: failed: timeout"],
  });
});
