// Names as the service takes them.

const NAME = /^[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$/;

export const isName = (text: string) => NAME.test(text);
