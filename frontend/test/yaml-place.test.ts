import { describe, expect, it } from "vitest";
import { placeOf } from "@/lib/yaml-place";

const TEXT = `# a file
---
kind: topic
metadata: {name: orders.eu}
spec: {mode: durable}
---

---
kind: alert-rule
metadata:
  name: lagging
spec:
  metric: nonsense
`;

describe("a problem of a YAML document", () => {
  it("is found by the document's name and the field's line", () => {
    expect(placeOf(TEXT, "/documents/1/spec/metric")).toEqual({
      document: "alert-rule lagging",
      line: 13,
    });
    expect(placeOf(TEXT, "/documents/0/spec/mode")).toEqual({
      document: "topic orders.eu",
      line: 5,
    });
    expect(placeOf(TEXT, "/documents/0")).toEqual({ document: "topic orders.eu", line: 3 });
  });
  it("is nowhere when there is no such document", () => {
    expect(placeOf(TEXT, "/documents/7/spec")).toBeNull();
    expect(placeOf(TEXT, "/spec/metric")).toBeNull();
  });
});
