// What every module draws with: Preact and htm, from one vendored file.
export {
  html, render, useCallback, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState,
} from "../vendor/htm-preact.js";
