// What the page keeps of a view: in the link all of it, in the browser the views that were saved and the look.
const VIEWS = 'sowstream.views';
const THEME = 'sowstream.theme';
/** Each pane is a connection, and holds the rows of its window. */
export const PANES_MAX = 8;

const asked = (hash) => new URLSearchParams(hash.replace(/^#/, ''));
const escaped = (path) => path.replace(/[%,:]/g, encodeURIComponent);
const plain = (text) => text.replace(/%25|%2C|%3A/g, decodeURIComponent);

/** Read a link: `{isStatus, topic, filter, search, order: [{path, isFalling}], layout: [{path, isHidden, isPinned, width}], record,
 * groups: [path], figure, hasTotals, where}`, which has the filters of columns as AG Grid has them. */
export function readLink(hash) {
  const link = asked(hash);
  const items = (name) => (link.get(name) || '').split(',').filter(Boolean);
  return {
    isStatus: link.has('status'),
    topic: link.get('topic') || '',
    filter: link.get('filter') || '',
    search: link.get('search') || '',
    record: link.get('record') ?? undefined,
    where: { ...parsed(link.get('where')) },
    groups: items('groups').map(plain),
    figure: link.get('figure') || 'SUM',
    hasTotals: link.has('totals'),
    order: items('order').map((item) => ({ path: plain(item.replace(/^-/, '')), isFalling: item.startsWith('-') })),
    layout: items('columns').map((item) => {
      const [, marks, path, width] = /^([!*]*)([^:]*):?(\d*)$/.exec(item) ?? [];
      return { path: plain(path ?? ''), isHidden: marks?.includes('!') ?? false, isPinned: marks?.includes('*') ?? false, width: Number(width) || undefined };
    }).filter(({ path }) => path),
  };
}

/** Write a link; a layout that is empty, as it begins, is left out. */
export function writeLink({ topic, filter, search, record, where = {}, order = [], layout = [], groups = [], figure = 'SUM', hasTotals = false }) {
  const link = new URLSearchParams({ topic });
  if (filter) link.set('filter', filter);
  if (search) link.set('search', search);
  if (Object.keys(where).length) link.set('where', JSON.stringify(where));
  if (order.length) link.set('order', order.map(({ path, isFalling }) => `${isFalling ? '-' : ''}${escaped(path)}`).join(','));
  const column = ({ path, isHidden, isPinned, width }) => `${isHidden ? '!' : ''}${isPinned ? '*' : ''}${escaped(path)}${width ? `:${Math.round(width)}` : ''}`;
  if (layout.length) link.set('columns', layout.map(column).join(','));
  if (groups.length) link.set('groups', groups.map(escaped).join(','));
  if (hasTotals) link.set('totals', '');
  if ((groups.length || hasTotals) && figure !== 'SUM') link.set('figure', figure);
  if (record !== undefined) link.set('record', record);
  return `#${link}`;
}

/** The link of a page with several panes, from their links. */
export const deskLink = (links, isStacked = false) => `desk.html#${new URLSearchParams([...links.map((link) => ['pane', link.replace(/^#/, '')]), ...(isStacked ? [['stacked', '']] : [])])}`;

/** Read the link of a page with several panes. */
export function readDesk(hash) {
  const desk = asked(hash);
  return { links: desk.getAll('pane').slice(0, PANES_MAX).map((link) => `#${link}`), isStacked: desk.has('stacked') };
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return null; }
}

function kept(name, otherwise) {
  try { return parsed(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; } // Private windows keep nothing.
}

function keep(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* The page works without it. */ }
}

/** The links of the views that were saved in this browser, by name. */
export const savedViews = () => kept(VIEWS, {});

/** Save a view, or with no link forget it. */
export function saveView(name, link) {
  const { [name]: _, ...others } = savedViews();
  keep(VIEWS, link === undefined ? others : { ...others, [name]: link });
}

/** Look as it was chosen in this browser, and else as the system does; the button changes it in all pages that are open. */
export function followTheme(button) {
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = kept(THEME, null);
  const isDark = () => (chosen ? chosen === 'dark' : system.matches);
  const show = () => {
    document.documentElement.dataset.look = isDark() ? 'dark' : 'light';
    [button.textContent, button.ariaPressed] = isDark() ? ['☀', 'true'] : ['☾', 'false'];
  };
  button.addEventListener('click', () => { keep(THEME, chosen = isDark() ? 'light' : 'dark'); show(); });
  system.addEventListener('change', show);
  addEventListener('storage', () => { chosen = kept(THEME, null); show(); });
  show();
}
