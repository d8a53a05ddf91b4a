/* What the page asks its server for. The address that "scon web" prints ends in a token. */
import { useEffect, useState } from "./vendor/htm-preact.js";

const name = "scon-token";
let token = "";

/* takeToken moves the token out of the address bar, into the memory of this tab. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  try {
    if (given) sessionStorage.setItem(name, given);
    token = given || sessionStorage.getItem(name) || "";
  } catch {
    token = given || token; // the browser keeps nothing: a reload needs the whole address
  }
  if (given) history.replaceState(null, "", location.pathname);
}
takeToken();
addEventListener("hashchange", () => { takeToken(); location.reload(); });

/* request answers with what fetch does, or throws what the server says is wrong. */
export async function request(path, query, signal) {
  const r = await fetch(path + "?" + new URLSearchParams(query), { headers: token ? { Authorization: "Bearer " + token } : {}, signal });
  if (r.ok) return r;
  const text = (await r.text()).trim(), refusal = text.startsWith("{") ? JSON.parse(text).error : text;
  throw Object.assign(new Error(refusal), { status: r.status });
}
export const document = async (path, query = {}, signal) => (await request(path, query, signal)).json();

/* follow calls each with every event of a stream, until it ends. */
async function follow(query, signal, each) {
  const reader = (await request("events", query, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const e of events) each(JSON.parse(e.slice("data: ".length)));
  }
}

/* all is one event with all rows that a query selects. */
export async function all(query) {
  const event = JSON.parse((await (await request("events", { ...query, export: 1 })).text()).slice("data: ".length));
  if (event.error) throw new Error(event.error);
  return event;
}

const silence = 4000; // ms without an event

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/* useLooks is the stream of looks at the daemon: the latest one, and what is wrong with the
   stream. A page that nobody sees does not ask. */
export function useLooks(query, stopped) {
  const [state, set] = useState({ look: null, lost: "", locked: false });
  const [hidden, hide] = useState(globalThis.document.hidden);
  useEffect(() => {
    const changed = () => hide(globalThis.document.hidden);
    globalThis.document.addEventListener("visibilitychange", changed);
    return () => globalThis.document.removeEventListener("visibilitychange", changed);
  }, []);
  useEffect(() => {
    if (stopped || hidden) return;
    const abort = new AbortController();
    let timer = 0;
    const take = (look) => {
      clearTimeout(timer);
      if (!look.error) timer = setTimeout(() => take({ error: "the daemon has said nothing for " + silence / 1000 + " s" }), silence);
      set((s) => ({ look: look.error && s.look ? { ...s.look, error: look.error } : look, lost: "", locked: false }));
    };
    (async () => {
      while (!abort.signal.aborted) {
        try {
          await follow(query, abort.signal, take);
          throw new Error("the stream has ended");
        } catch (e) {
          if (abort.signal.aborted) return;
          if (!e.status) set((s) => ({ ...s, lost: "the server of this page does not answer" }));
          else if (e.status === 401) set((s) => ({ ...s, locked: true }));
          else take({ error: e.message });
        }
        await sleep(1000);
      }
    })();
    return () => { clearTimeout(timer); abort.abort(); };
  }, [JSON.stringify(query), stopped, hidden]);
  return { ...state, looking: !stopped && !hidden };
}

/* usePolled asks for a document every second while it is shown: [latest, the one before,
   error]. Documents have the time at which they came, at. */
export function usePolled(path, shown, read = document) {
  const [state, set] = useState([null, null, ""]);
  useEffect(() => {
    if (!shown) return;
    const abort = new AbortController();
    (async () => {
      while (!abort.signal.aborted) {
        try {
          const is = { ...(await read(path, {}, abort.signal)), at: performance.now() };
          set(([was]) => [is, was, ""]);
        } catch (e) {
          if (abort.signal.aborted) return;
          set([null, null, e.message]);
        }
        await sleep(1000);
      }
    })();
    return () => abort.abort();
  }, [shown]);
  return state;
}
/* perSecond is the rate of a counter between two documents. */
export const perSecond = (is, was, count) => (was && count(is) >= count(was) ? (1000 * (count(is) - count(was))) / (is.at - was.at) : 0);
