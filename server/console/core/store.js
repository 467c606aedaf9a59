// A value that several components show. Nothing here outlives the page, except what the server keeps.
import { useEffect, useState } from "./html.js";

export function createStore(initial) {
  let value = initial;
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      value = typeof next === "function" ? next(value) : next;
      for (const listener of [...listeners]) listener(value);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

export function useStore(store) {
  const [value, show] = useState(store.get());
  useEffect(() => {
    show(store.get()); // it may have changed between the first drawing and now
    return store.subscribe(show);
  }, [store]);
  return value;
}
