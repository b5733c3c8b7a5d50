// What a page in a browser has and Node has not, for the examples of docs/api.md.
import { EventSource } from "eventsource";
import WebSocket from "ws";

Object.assign(globalThis, {
  EventSource,
  WebSocket,
  location: { origin: process.env.RMCS_ADDRESS },
  prompt: () => process.env.RMCS_TOKEN,
});
