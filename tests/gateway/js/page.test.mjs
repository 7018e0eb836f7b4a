// Tests of the page's modules that need no browser, against the gateway at GATEWAY_URL; run by test_javascript.py.
import assert from 'node:assert/strict';
import test from 'node:test';

import { csvCell, formatted, instantOf, moveOf, typed } from '../../../processor/gateway/web/page-cells.js';
import { deskLink, readDesk, readLink, writeLink } from '../../../processor/gateway/web/page-link.js';
import { both, columnFilter, forgetSample, groupFilter, groupOptions, hintOf, searchFilter } from '../../../processor/gateway/web/page-queries.js';
import { Edits } from '../../../processor/gateway/web/page-record.js';
import { LiveWindow } from '../../../processor/gateway/web/page-window.js';
import { connect, Decimal, parse } from '../../../processor/gateway/web/sowstream.js';

const url = process.env.GATEWAY_URL;
const open = () => connect({ url, backoffMin: 10, backoffMax: 50 });
const HALF = [{ path: '/half', isFalling: false, text: '/half' }];

async function until(holds) {
  for (let turn = 0; !holds(); turn += 1) {
    if (turn > 6000) throw new Error('it never holds');
    await new Promise((done) => setTimeout(done, 20));
  }
}

test('each picture of a window is complete and in order, while records come, go and move', async () => {
  const [reader, writer] = [await open(), await open()];
  let seed = 20261128;
  const random = (below) => { seed = (seed * 1103515245 + 12345) % 2147483648; return (seed >> 12) % below; };
  const write = (id) => writer.publish('orders', { id, half: random(400) / 2 }, { ack: 'processed' });
  await Promise.all(Array.from({ length: 300 }, (_, id) => write(id)));
  let pictures = 0;
  const window = new LiveWindow(reader, 'orders', { filter: '/half >= 50', order: HALF }, {
    rows: () => {
      pictures += 1;
      const records = window.rows.map((row) => window.newest(row).record);
      const halves = records.map(({ half }) => half);
      assert.deepEqual(halves, [...halves].sort((one, other) => one - other));
      assert.equal(new Set(window.rows.map(({ key }) => key)).size, window.rows.length);
      assert.ok(halves.every((half) => half >= 50));
      for (const [at, { key }] of window.rows.entries()) assert.equal(String(records[at].id), key);
    },
    changes: () => {},
    error: (error) => { throw error; },
  });
  for (let turn = 0; turn < 60; turn += 1) {
    const commands = Array.from({ length: 20 }, () => {
      const id = random(350);
      return random(5) ? write(id) : writer.sowDelete('orders', { key: String(id), ack: 'processed' }).catch(() => {});
    });
    const first = random(150);
    if (turn % 3 === 0) window.show(first, first + 30);
    await Promise.all(commands);
  }
  await until(() => window.isSettled);
  const wanted = await reader.sow('orders', { filter: '/half >= 50', orderBy: '/half' });
  assert.equal(window.total, wanted.length);
  const place = window.rows.map(({ key }, at) => [window.first + at, key]);
  for (const [at, key] of place) assert.equal(wanted[at]?.sow_key, key);
  assert.ok(place.length >= 31 || window.first + place.length === wanted.length);
  assert.ok(pictures > 20);
  window.close();
  for (const one of [reader, writer]) one.close();
});

test('many updates of a row are folded, and counted all the same; few come one by one', async () => {
  const [reader, writer] = [await open(), await open()];
  const write = (half) => writer.publish('orders', { id: 7000, half }, { ack: 'processed' });
  await write(0);
  let updates = [];
  const window = new LiveWindow(reader, 'orders', { filter: '/id = 7000', order: HALF, options: {} }, {
    rows: () => {},
    changes: (changes) => { updates.push(...changes.filter(({ type }) => type === 'update').map((change) => window.updatesIn(change))); },
    error: (error) => { throw error; },
  });
  await until(() => window.isSettled);
  const total = () => updates.reduce((one, other) => one + other, 0);
  const isShown = (half) => window.rows.length === 1 && window.newest(window.rows[0]).record.half === half;
  await window.pace(1000);
  await Promise.all(Array.from({ length: 50 }, (_, half) => write(half + 1)));
  await until(() => total() === 50 && isShown(50));
  assert.ok(updates.length < 50, `${updates.length} messages`);
  await window.pace(300);
  await Promise.all([write(51), write(52)]);
  await window.pace(100); // What is held comes as a whole row.
  await until(() => total() === 52 && isShown(52));
  updates = [];
  await Promise.all(Array.from({ length: 50 }, (_, half) => write(half + 53)));
  await until(() => total() === 50 && isShown(102)); // The picture may be there before the last of them.
  assert.deepEqual(updates, Array(50).fill(1));
  window.close();
  for (const one of [reader, writer]) one.close();
});

test('a wrong filter leaves a window as it is', async () => {
  const reader = await open();
  const window = new LiveWindow(reader, 'orders', { filter: '', order: [] }, { rows: () => {}, changes: () => {}, error: () => {} });
  await until(() => window.isSettled);
  const before = window.rows.map(({ key }) => key);
  await assert.rejects(window.replace({ filter: '/half >', order: [] }), (error) => error.message.includes('^'));
  await until(() => window.isSettled);
  assert.equal(window.filter, '');
  assert.deepEqual(window.rows.map(({ key }) => key), before);
  window.close();
  reader.close();
});

test('values are shown by kind, and keep each digit', () => {
  const shown = (text, column) => formatted(parse(text), column);
  assert.equal(shown('1234567.5'), '1,234,567.5');
  assert.equal(shown('12345678901234567890.12'), '12,345,678,901,234,567,890.12');
  assert.equal(shown('1E+400'), '1E+400');
  assert.equal(shown('1234', { isName: true }), '1234');
  assert.equal(shown('-1234.5', { decimals: 3 }), '-1,234.5\u2007\u2007');
  assert.equal(shown('7', { decimals: 2 }), '7\u2008\u2007\u2007');
  assert.equal(shown('null'), 'null');
  const at = formatted('2026-11-27T09:22:46.873123456+00:00');
  assert.match(at, /^2026-11-2[678] \d\d:\d\d:46\.873123456$/);
  assert.equal(formatted('2026-11-27'), '2026-11-27');
});

test('a number of any length is shown in a moment', () => {
  const began = performance.now();
  assert.equal(formatted(parse('1'.repeat(99999))), Array(33333).fill('111').join());
  assert.ok(performance.now() - began < 2000);
});

test('no text is a formula in the CSV, and all else is as it is', () => {
  for (const text of ['=1+1', '@SUM(A1)', "-2+cmd|' /C calc'!A0", '+A1', '\t=1', '-n/a']) assert.equal(csvCell(text).replace(/^"/, ''), `'${text}`);
  assert.equal(csvCell('=HYPERLINK("http://x")'), `"'=HYPERLINK(""http://x"")"`);
  for (const text of ['-5.25', '+49 30 1234-5', '-', '', 'a=b', "'=1"]) assert.equal(csvCell(text), text);
  assert.deepEqual([-5, new Decimal('-1E+400'), -(2n ** 60n), null, true].map(csvCell), ['-5', '-1E+400', '-1152921504606846976', '', 'true']);
  assert.equal(csvCell(['=1']), '"[""=1""]"');
});

test('a typed time is local unless it has a zone, and keeps each digit', () => {
  for (const [text, instant] of [
    ['2026-11-30T14:05:07.123456789Z', '2026-11-30T14:05:07.123456789Z'], ['2026-11-30 14:05 +05:30', '2026-11-30T08:35:00Z'], ['2026-11-30T00:30+01:00', '2026-11-29T23:30:00Z'],
    ['2026-02-30', undefined], ['2026-13-01', undefined], ['2026-11-30 25:00', undefined], ['2026-11-30 14:05:61', undefined], ['14:05', undefined], ['2026-11', undefined], ['', undefined],
  ]) assert.equal(instantOf(text), instant, text);
  for (const local of ['2026-11-30 14:05:00', '2026-07-01 00:00:00.5', '2024-02-29 23:59:59']) assert.equal(formatted(instantOf(local)), local);
  assert.equal(instantOf('2026-11-30'), instantOf('2026-11-30 00:00'));
});

test('a number rises or falls by every digit, and nothing else does', () => {
  const move = (before, now) => moveOf(parse(before), parse(now));
  assert.equal(move('9007199254740992', '9007199254740993'), 'up');
  assert.equal(move('0.1234567890123456789', '0.1234567890123456788'), 'down');
  assert.equal(move('-0.0', '0'), undefined);
  for (const other of ['null', '"2"', 'true', '[1]']) assert.equal(move('1', other), undefined);
  assert.equal(moveOf(undefined, 1), undefined);
});

test('a text stands for a value of the kind that it replaces, or for none', () => {
  assert.equal(typed('1000', 5), 1000);
  assert.equal(typed('1,000', 'text'), '1,000');
  assert.throws(() => typed('1,000', 5), /1,000 is none. Write 1000./);
  assert.throws(() => typed('abc', 5), /abc is none/);
  assert.throws(() => typed('1', true), /Write true or false/);
  assert.equal(typed('false', true), false);
  assert.equal(typed('abc', null), 'abc');
});

test('a link has all of a view, with any names', () => {
  const view = {
    isStatus: false, where: { '/q': { type: 'equals', filter: 'ä&#', kind: 'string' } }, topic: 'a&b', search: 'a+ %', filter: "/x = 'ä & #' AND /y > 1", record: '["1","ä"]', groups: ['/a,b', '/c'], figure: 'AVG', hasTotals: true,
    order: [{ path: '/-a,b:c%', isFalling: true }, { path: '/p', isFalling: false }],
    layout: [{ path: '/x:1,%2C', isHidden: true, isPinned: false, width: 120 }, { path: 'SOW_KEY()', isHidden: false, isPinned: true, width: undefined }],
  };
  assert.deepEqual(readLink(writeLink(view)), view);
  const links = [writeLink(view), '#topic=b'];
  assert.deepEqual(readDesk(new URL(deskLink(links, true), 'http://a/').hash), { links, isStacked: true });
});

test('filters of columns are conditions of the filter language', async () => {
  const reader = await open();
  for (const [id, more] of [['c1', { n: 9007199254740993n, s: "O'Neil" }], ['c2', { n: 2, s: 'oneil', t: true }], ['c3', {}]]) {
    await reader.publish('quotes', { id, set: 'columns', ...more }, { ack: 'processed' });
  }
  for (const [id, at] of [['t1', '2026-11-27T10:00:00+01:00'], ['t2', '2026-11-27T09:00:00.000000001Z'], ['t3', '2026-11-27 10:30Z'], ['t4', 'later']]) {
    await reader.publish('quotes', { id, set: 'times', at }, { ack: 'processed' });
  }
  const time = (type, filter, filterTo) => ({ '/at': { type, filter, filterTo, kind: 'time' } });
  for (const [where, wanted] of [
    [time('before', '2026-11-27T09:00:00.000000001Z'), 't1'], [time('after', '2026-11-27T14:30+05:30'), 't2,t3'], [time('equals', '2026-11-27 09:00Z'), 't1'], [time('notEqual', '2026-11-27 09:00Z'), 't2,t3,t4'],
    [time('between', '2026-11-27 09:00Z', '2026-11-27 10:30Z'), 't1,t2,t3'], [time('notBlank'), 't1,t2,t3,t4'], [time('between', '2026-11-27 10:00Z', '2026-11-27 11:00Z'), 't3'],
  ]) {
    const rows = await reader.sow('quotes', { filter: both("/set = 'times'", columnFilter(where)), orderBy: '/id' });
    assert.equal(rows.map(({ sow_key: key }) => key).join(), wanted, JSON.stringify(where));
  }
  assert.throws(() => columnFilter(time('before', 'noon')), /noon is no time. Write 2026-11-30/);
  for (const key of ['t1', 't2', 't3', 't4']) await reader.sowDelete('quotes', { key, ack: 'processed' });
  const number = (type, filter) => ({ '/n': { type, filter, kind: 'number' } });
  const text = (type, filter, path = '/s') => ({ [path]: { type, filter } });
  for (const [where, wanted] of [
    [number('equals', '9007199254740992'), ''], [number('equals', '9007199254740993'), 'c1'], [number('notEqual', '2'), 'c1,c3'],
    [number('greaterThan', '2'), 'c1'], [{ '/n': { type: 'between', filter: '2', filterTo: '3', kind: 'number' } }, 'c2'], [number('lessThanOrEqual', '2'), 'c2'], [number('blank'), 'c3'], [number('notBlank'), 'c1,c2'],
    [text('contains', "'N"), 'c1'], [text('notContains', 'NEIL'), 'c3'], [text('equals', 'oneil'), 'c2'], [text('notEqual', 'oneil'), 'c1,c3'],
    [text('startsWith', 'O'), 'c1'], [text('endsWith', 'l'), 'c1,c2'], [text('true', undefined, '/t'), 'c2'], [text('contains', 'C3', 'SOW_KEY()'), 'c3'],
    [{ '/n': { kind: 'number', operator: 'OR', conditions: [{ type: 'lessThan', filter: '3' }, { type: 'blank' }] }, ...text('blank') }, 'c3'],
    [{}, 'c1,c2,c3'],
  ]) {
    const rows = await reader.sow('quotes', { filter: both("/set = 'columns'", columnFilter(where)), orderBy: '/id' });
    assert.equal(rows.map(({ sow_key: key }) => key).join(), wanted, JSON.stringify(where));
  }
  assert.throws(() => columnFilter(number('equals', '1,000')), /Write 1000/);
  for (const key of ['c1', 'c2', 'c3']) await reader.sowDelete('quotes', { key, ack: 'processed' });
  reader.close();
});

test('an empty grid has its reason, and a group its records', async () => {
  const reader = await open();
  await reader.publish('quotes', { id: 'a', bid: 1.5, side: null, at: { venue: "O'Neil" }, "d'or": 'x', 'größe, m': 7 }, { ack: 'processed' });
  assert.match(await hintOf(reader, 'quotes', '/bidd > 1'), /has \/bidd. Did you mean \/bid\?/);
  assert.equal(await hintOf(reader, 'quotes', "/bid > 2 AND /at/venue = '/nosuch'"), 'No record matches the filter.');
  const paths = ['/side', '/at/venue', "/d'or"];
  const options = await groupOptions(reader, { topic: 'quotes', key: ['/id'] }, { filter: '', paths, figure: 'SUM' });
  assert.deepEqual(options, {
    grouping: ['/side', '/at/venue', "/'d\\'or'"],
    projection: "COUNT(*) AS /count, SUM(/bid) AS /bid, SUM(/'größe, m') AS /'größe, m'",
  });
  const [{ data }] = await reader.sow('quotes', options);
  assert.deepEqual(data, { side: null, at: { venue: "O'Neil" }, "d'or": 'x', count: 1, bid: 1.5, 'größe, m': 7 });
  const rows = await reader.sow('quotes', { filter: groupFilter('/bid > 1', paths, { '/side': null, '/at/venue': "O'Neil", "/d'or": 'x' }) });
  assert.equal(rows.length, 1);
  for (const [text, count] of [['a', 1], ["O'NEIL", 1], ['1.5', 1], ['2', 0]]) {
    assert.equal((await reader.sow('quotes', { filter: await searchFilter(reader, 'quotes', '/bid > 1', text) })).length, count, text);
  }
  reader.close();
});

test('a quick search looks once which fields a topic has, and again if that failed or when there are others', async () => {
  let samples = 0;
  let isAway = true;
  const connection = { sow: async () => {
    samples += 1;
    if (isAway) throw new Error('away');
    return [{ data: { id: samples } }];
  } };
  await assert.rejects(searchFilter(connection, 'a', '', 'x'), /away/);
  isAway = false;
  const texts = await Promise.all(['x', 'xy', 'xyz'].map((text) => searchFilter(connection, 'a', '', text)));
  assert.match(texts[2], /INSTR_I\(\/id, 'xyz'\)/);
  assert.equal(samples, 2);
  await searchFilter(connection, 'b', '', 'x');
  assert.equal(samples, 3);
  forgetSample(connection);
  await searchFilter(connection, 'b', '', 'x');
  assert.equal(samples, 4);
});

/** The edits of one record, at version 5: others write `theirs`, each before the next publish is taken. */
function editsOf(data, theirs) {
  const record = { data, version: 5 };
  const publish = async (delta, { expectVersion }) => {
    const other = theirs.shift();
    if (other) Object.assign(record, { data: { ...record.data, ...other }, version: record.version + 1 });
    if (expectVersion !== record.version) throw Object.assign(new Error('refused'), { reason: 'conflict', ack: { version: record.version } });
    Object.assign(record, { data: { ...record.data, ...delta }, version: record.version + 1 });
  };
  return { record, edits: new Edits({ publish, read: async () => [record], changed: () => {} }) };
}

test('an edit goes on beside changes of other fields, and is refused where its own field was changed', async () => {
  const edit = { key: '1', path: '/qty', text: '120', held: 100, version: 5 };
  const beside = editsOf({ qty: 100 }, [{ px: 1 }, { px: 2 }]);
  await beside.edits.save(edit);
  assert.deepEqual(beside.record.data, { qty: 120, px: 2 });
  const same = editsOf({ qty: 100 }, [{ qty: 110 }]);
  await assert.rejects(same.edits.save(edit), /qty of 1 was changed by another one meanwhile/);
  assert.deepEqual(same.record.data, { qty: 110 });
});

test('an undo is refused where its field is changed while it is written', async () => {
  const { record, edits } = editsOf({ qty: 100 }, [null, { qty: 777 }]);
  await edits.save({ key: '1', path: '/qty', text: '120', held: 100, version: 5 });
  await assert.rejects(edits.undo(), /changed by another one/);
  assert.equal(record.data.qty, 777);
});
