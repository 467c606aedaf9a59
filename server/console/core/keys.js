// Keys of the keyboard, where nobody types.
export const isTyping = (target) => target.closest?.("input:not([type=checkbox], [type=range]), textarea, select") != null;
