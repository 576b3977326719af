// The theme: automatic (the system's), light or dark. A classic script in the head, so that no page is drawn in the wrong one.
// <html data-theme> is always "light" or "dark"; a change is told by the event `themechange` on the document.
(function () {
  'use strict';
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  const KEY = 'penstock.theme';
  const choices = ['auto', 'light', 'dark'];

  function chosen() {
    try {
      const kept = localStorage.getItem(KEY);
      return choices.includes(kept) ? kept : 'auto';
    } catch {
      return 'auto';
    }
  }

  function apply() {
    const choice = chosen();
    const theme = choice === 'auto' ? (dark.matches ? 'dark' : 'light') : choice;
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent('themechange', { detail: { choice, theme } }));
  }

  dark.addEventListener('change', apply);
  window.addEventListener('storage', (event) => event.key === KEY && apply());
  window.penstockTheme = {
    chosen,
    next() {
      const choice = choices[(choices.indexOf(chosen()) + 1) % choices.length];
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // A browser that keeps nothing has the system's theme.
      }
      apply();
    },
  };
  apply();
})();
