// Requests to the server: the page's state, and inference by the Open Inference Protocol.

import { decode } from "./datatypes.js";

let token = ""; // in memory only

export function useToken(text) {
  token = text;
}

/** The server refused a request. status: of HTTP. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function fetched(address, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(address, { ...options, headers, credentials: "omit" });
  if (response.ok) return response;
  const text = await response.text();
  let said = text;
  try {
    said = JSON.parse(text).error ?? text;
  } catch {
    // it is not JSON
  }
  throw new Refused(said || `the server answered ${response.status}`, response.status);
}

export const readAbout = async () => (await fetched("page/about.json")).json();

export const readState = async () => (await fetched("page/state.json")).json();

/**
 * Run a model once.
 * inputs: objects of name, datatype, shape and bytes.
 * Returns outputs of name, datatype, shape and values, milliseconds, and bytes there and back.
 */
export async function infer(model, version, inputs) {
  const head = {
    inputs: inputs.map(({ name, datatype, shape, bytes }) => ({
      name, datatype, shape, parameters: { binary_data_size: bytes.length },
    })),
    parameters: { binary_data_output: true },
  };
  const json = new TextEncoder().encode(JSON.stringify(head));
  const body = new Blob([json, ...inputs.map((input) => input.bytes)]);
  const of = `v2/models/${encodeURIComponent(model)}/versions/${encodeURIComponent(version)}`;
  const begin = performance.now();
  const response = await fetched(`${of}/infer`, {
    method: "POST",
    headers: {
      "Content-Type": "application/octet-stream",
      "Inference-Header-Content-Length": String(json.length),
    },
    body,
  });
  const bytes = new Uint8Array(await response.arrayBuffer());
  const milliseconds = performance.now() - begin;
  const length = Number(response.headers.get("Inference-Header-Content-Length") ?? bytes.length);
  const answer = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
  let at = length;
  const outputs = answer.outputs.map((output) => {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) return { ...output, values: (output.data ?? []).flat(Infinity) };
    at += size;
    return { ...output, values: decode(output.datatype, bytes.subarray(at - size, at)) };
  });
  return { outputs, milliseconds, sent: body.size, received: bytes.length };
}
