// Data of a route, for a component: what came, what failed, and again.
import { get, query } from "../core/api.js";
import { useCallback, useEffect, useRef, useState } from "../core/html.js";

// The answer of GET `path`. A new path asks again; answers that are late for an older path are dropped.
export function useRoute(path) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const controller = new AbortController();
    setState((before) => ({ ...before, error: null, loading: true }));
    get(path, { signal: controller.signal }).then(
      (data) => setState({ data, error: null, loading: false }),
      (error) => error.name !== "AbortError" && setState({ data: null, error, loading: false }),
    );
    return () => controller.abort();
  }, [path, turn]);
  return { ...state, reload: useCallback(() => setTurn((number) => number + 1), []) };
}

// The pages of a list, one after another.
export function useList(path, filter = {}) {
  const first = query(path, { limit: 50, ...filter });
  const [state, setState] = useState({ rows: null, more: null, error: null });
  const [turn, setTurn] = useState(0);
  const current = useRef();
  const load = async (url, before) => {
    current.current = url;
    try {
      const answer = await get(url);
      if (current.current !== url) return;
      const rows = [...before, ...answer.data];
      const more = answer.has_more ? query(path, { limit: 50, ...filter, after: answer.last_id }) : null;
      setState({ rows, more, error: null });
    } catch (error) {
      setState({ rows: before, more: null, error });
    }
  };
  useEffect(() => {
    load(first, []);
  }, [first, turn]);
  return {
    ...state,
    loadMore: () => load(state.more, state.rows),
    reload: useCallback(() => setTurn((number) => number + 1), []),
  };
}

// A button's work: `run` shows its error and is not started twice.
export function useWork() {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async (work) => {
    setState({ busy: true, error: null });
    try {
      await work();
      setState({ busy: false, error: null });
      return true;
    } catch (error) {
      setState({ busy: false, error });
      return false;
    }
  };
  return { ...state, run };
}
