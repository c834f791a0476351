// The explorer's questions to its server, and the parts of a page as they come in.

import { Payload } from "./payload.js";

export async function ask(path, body = null, signal = null) {
  const response = await fetch(path, body ? { method: "POST", body, signal, headers: { "Content-Type": "application/octet-stream" } } : { signal });
  if (response.ok) return response;
  const text = await response.text();
  let said = text;
  try {
    said = JSON.parse(text).detail ?? text;
  } catch { /* not JSON: as it is */ }
  throw new Error(typeof said === "string" ? said : JSON.stringify(said));
}

export function address(path, values) {
  return `${path}?${new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null && value !== ""))}`;
}

export const sampleAddress = (name) => `/api/samples/${encodeURIComponent(name)}`;

// whether whole blocks can be switched off
export const blocks = false;

// whether a change is answered before all views of the unchanged model have come: a newer job would cancel them
export const together = false;

// Each part of a response in stages: a payload after its length
export async function* parts(response) {
  const reader = response.body.getReader();
  let held = new Uint8Array(0);
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held);
    joined.set(value, held.length);
    held = joined;
    for (;;) {
      if (held.length < 4) break;
      const length = new DataView(held.buffer, held.byteOffset).getUint32(0, true);
      if (held.length < 4 + length) break;
      const part = new Payload(held.slice(4, 4 + length).buffer);
      held = held.subarray(4 + length);
      if (part.header.error) throw new Error(part.header.error);
      yield part;
    }
  }
  if (held.length) throw new Error("the answer broke off: try again");
}
