// Letters as keys, off by a switch that is remembered, and never while somebody types.

const KEY = 'penstock.keys';

export function addKeys({ others, current, focusFilter }) {
  const dialog = document.getElementById('keys');
  const on = document.getElementById('keys-on');
  const theme = document.getElementById('theme');
  const names = { auto: 'automatic', light: 'light', dark: 'dark' };
  on.checked = kept() !== 'off';
  on.addEventListener('change', () => keep(on.checked ? 'on' : 'off'));

  function showTheme() {
    const choice = window.penstockTheme.chosen();
    theme.setAttribute('aria-label', `Theme: ${names[choice]}`);
    document.getElementById('theme-word').textContent = choice;
  }
  theme.addEventListener('click', () => window.penstockTheme.next());
  document.addEventListener('themechange', showTheme);
  showTheme();
  document.getElementById('keys-open').addEventListener('click', () => dialog.showModal());
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());

  function step(by) {
    const ids = others();
    if (!ids.length) return;
    const at = ids.indexOf(current());
    const next = at < 0 ? (by > 0 ? 0 : ids.length - 1) : (at + by + ids.length) % ids.length;
    location.hash = `#/p/${encodeURIComponent(ids[next])}`;
  }

  const acts = {
    '/': () => focusFilter(),
    o: () => (location.hash = '#/'),
    n: () => step(1),
    p: () => step(-1),
    t: () => window.penstockTheme.next(),
    '?': () => dialog.showModal(),
  };
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.target.closest('input, select, textarea') || !on.checked) return;
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keep(value) {
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // A browser that keeps nothing has the keys on.
  }
}
