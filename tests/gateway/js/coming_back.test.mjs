// Tests of the JavaScript client against sockets and gateways that fail, by a WebSocket of our own; run by test_javascript.py.
import assert from 'node:assert/strict';
import test, { after } from 'node:test';

import { connect, Connection } from '../../../processor/gateway/web/sowstream.js';

const alive = setInterval(() => {}, 1000); // As real sockets do, it keeps the process.
after(() => clearInterval(alive));
const sleep = (wait) => new Promise((done) => { setTimeout(done, wait); });
const settings = { url: 'http://gateway', backoffMin: 1, backoffMax: 4, silence: 40, openTimeout: 60, answerTimeout: 120 };

async function until(holds) {
  for (let turn = 0; !holds(); turn += 1) {
    if (turn > 24000) throw new Error('it never holds');
    await sleep(5);
  }
}

/** A class of WebSockets, each served by `serve(socket, request, number of the socket)`; `opens` says which of them open. */
function sockets(serve, opens = () => true) {
  return class Fake {
    static all = [];

    constructor(url) {
      Fake.all.push(this);
      Object.assign(this, { url, asked: [], number: Fake.all.length });
      queueMicrotask(() => {
        const opening = opens(this.number, this);
        if (opening === 'error') this.onerror?.({});
        else if (opening) this.onopen?.({});
      });
    }

    send(text) {
      const request = JSON.parse(text);
      if (request.op === 'logon' && !request.token) { this.ack(request); return; } // It asks for the limits alone.
      this.asked.push(request);
      queueMicrotask(() => serve(this, request, this.number));
    }

    say(...messages) { queueMicrotask(() => this.onmessage?.({ data: JSON.stringify(messages) })); }
    ack(request, fields = {}) { this.say({ op: 'ack', id: request.id, status: 'success', ...fields }); }
    refuse(request, reason, detail = reason) { this.say({ op: 'ack', id: request.id, status: 'failure', reason, detail }); }
    die(code = 1006, reason = '') { this.onclose?.({ code, reason }); }
    close() { this.isClosed = true; }
  };
}

const polite = (socket, request) => socket.ack(request);

test('the path, the query, an IPv6 host and percent-encoding of the address are kept', () => {
  const wanted = {
    'https://desk/sow/': 'wss://desk/sow/v1/ws',
    'https://desk/sow': 'wss://desk/sow/v1/ws',
    'https://desk/a/b//?tenant=x&y=%2F': 'wss://desk/a/b/v1/ws?tenant=x&y=%2F',
    'http://[::1]:8080': 'ws://[::1]:8080/v1/ws',
    'http://desk/caf%C3%A9/%2Fx#page': 'ws://desk/caf%C3%A9/%2Fx/v1/ws',
    'ws://desk:1/v1/ws': 'ws://desk:1/v1/ws',
  };
  for (const [url, address] of Object.entries(wanted)) {
    const Socket = sockets(polite);
    new Connection({ ...settings, url, WebSocket: Socket }).close();
    assert.equal(Socket.all[0].url, address);
  }
});

test('where there is no WebSocket, the error says that one can be passed', async () => {
  const held = Object.getOwnPropertyDescriptor(globalThis, 'WebSocket');
  delete globalThis.WebSocket;
  try {
    await assert.rejects(connect({ url: 'http://desk' }), /no WebSocket here.*pass one/);
  } finally { if (held) Object.defineProperty(globalThis, 'WebSocket', held); }
});

test('an attempt that fails without a close, or is never answered, is followed by another one', async () => {
  const Socket = sockets(polite, (number) => (number === 1 ? 'error' : number > 2));
  const client = await connect({ ...settings, WebSocket: Socket });
  assert.equal(Socket.all.length, 3);
  client.close();
});

test('a logon that is never answered is given up', async () => {
  const Socket = sockets((socket, request, number) => { if (number > 1) socket.ack(request); });
  const client = await connect({ ...settings, token: 't', WebSocket: Socket });
  assert.equal(Socket.all.length, 2);
  client.close();
});

test('a token that is not given in time is asked for again', async () => {
  let asked = 0;
  const token = () => (asked++ ? 't' : new Promise(() => {}));
  const client = await connect({ ...settings, token, WebSocket: sockets(polite) });
  assert.equal(asked, 2);
  client.close();
});

test('a socket that is dead without a word is found, and the subscription goes on from its bookmark', async () => {
  const Socket = sockets((socket, request, number) => {
    if (request.op === 'ping' && number === 1) return;
    socket.ack(request);
    if (request.op === 'sow_and_subscribe') {
      socket.say({ command: 'group_begin', subs: [request.id] }, { command: 'group_end', subs: [request.id], bookmarks: { [request.id]: 'b1' } });
    }
  });
  const client = await connect({ ...settings, WebSocket: Socket });
  const subscription = client.sowAndSubscribe('orders', {}, () => {});
  await until(() => subscription.isLive);
  await until(() => Socket.all.length === 2 && subscription.isLive);
  assert.ok(Socket.all[0].asked.some(({ op }) => op === 'ping'));
  assert.equal(Socket.all[1].asked[0].resume, 'b1');
  client.close();
});

test('what is not there yet is asked for again with back-off, and says so', async () => {
  let refused = 0;
  const Socket = sockets((socket, request) => {
    if (request.op === 'sow' && refused < 3) { refused += 1; socket.refuse(request, 'unavailable'); return; }
    socket.ack(request);
    if (request.op !== 'sow') return;
    const subs = [request.id];
    socket.say({ command: 'group_begin', subs }, { command: 'sow', subs, sow_key: '1', data: {} }, { command: 'group_end', subs });
  });
  const client = await connect({ ...settings, WebSocket: Socket });
  const seen = [];
  client.addEventListener('unavailable', ({ error }) => seen.push(error.reason));
  assert.equal((await client.sow('orders')).length, 1);
  assert.deepEqual(seen, ['unavailable', 'unavailable', 'unavailable']);
  client.close();
});

test('a subscription that ends because it is not there now is asked for again, and another end is an error', async () => {
  const Socket = sockets((socket, request) => socket.ack(request));
  const client = await connect({ ...settings, WebSocket: Socket });
  const [socket] = Socket.all;
  const subscription = client.subscribe('orders');
  await subscription.accepted;
  socket.say({ command: 'publish', subs: [subscription.id], bookmarks: { [subscription.id]: 'b7' } });
  socket.say({ op: 'ended', sub: subscription.id, reason: 'unavailable' });
  const asked = () => socket.asked.filter(({ op }) => op === 'subscribe');  // On a busy machine pings come between.
  await until(() => asked().length === 2 && subscription.isLive);
  assert.equal(asked()[1].resume, 'b7');
  socket.say({ op: 'ended', sub: subscription.id, reason: 'moved', detail: 'read another' });
  await assert.rejects((async () => { for await (const one of subscription) assert.equal(one.command, 'publish'); })(), /another/);
  client.close();
});

test('a request without an answer is sent again over another connection', async () => {
  const Socket = sockets((socket, request, number) => { if (number > 1 || request.op === 'ping') socket.ack(request); });
  const client = await connect({ ...settings, WebSocket: Socket });
  await client.subscribe('orders').accepted;
  assert.equal(Socket.all.length, 2);
  client.close();
});

test('a replace without an answer is sent again once its subscription is accepted again', async () => {
  const Socket = sockets((socket, request, number) => {
    if (request.op === 'replace' && number === 1) socket.die();
    else socket.ack(request);
  });
  const client = await connect({ ...settings, WebSocket: Socket });
  const subscription = client.subscribe('orders', { filter: '/a = 1' });
  await subscription.accepted;
  await subscription.replace({ filter: '/a = 2' });
  assert.deepEqual(Socket.all[1].asked.map(({ op, filter }) => [op, filter]), [['subscribe', '/a = 1'], ['replace', '/a = 2']]);
  assert.equal(subscription.options.filter, '/a = 2');
  client.close();
});

test('a replace is sent again when its subscription begins again under another id meanwhile', async () => {
  let replaced = 0;
  const Socket = sockets((socket, request) => {
    const subs = [request.id];
    // A delta for a record that is not there: the view reads everything again, while its replace is under way.
    if (request.op === 'replace' && !replaced++) socket.say({ command: 'publish', subs: [request.sub], sow_key: '9', delta: true, delta_base: 1, version: 2, data: {} });
    setTimeout(() => {
      socket.ack(request);
      if (request.op.startsWith('sow')) socket.say({ command: 'group_begin', subs }, { command: 'group_end', subs });
    }, 5);
  });
  const client = await connect({ ...settings, silence: 10000, WebSocket: Socket });
  const view = client.view('orders', { filter: '/a = 1' });
  await view.ready;
  await view.replace({ filter: '/a = 2' });
  const [socket] = Socket.all;
  const last = socket.asked.findLast(({ op }) => op === 'replace' || op.startsWith('sow'));
  assert.deepEqual([last.filter, last.sub ?? last.id], ['/a = 2', view.subscription.id]);
  client.close();
});

test('a replace of a subscription that is asked for, and not accepted yet, waits for that', async () => {
  const Socket = sockets((socket, request) => setTimeout(() => socket.ack(request), 10));
  const client = await connect({ ...settings, WebSocket: Socket });
  await client.view('orders', { filter: '/a = 1' }).replace({ filter: '/a = 2' });
  assert.deepEqual(Socket.all[0].asked.map(({ op, filter }) => [op, filter]), [['sow_and_delta_subscribe', '/a = 1'], ['replace', '/a = 2']]);
  client.close();
});

test('replaces keep their order, also those of a subscription that was lost before it was accepted', async () => {
  const Socket = sockets((socket, request, number) => { if (number > 1) socket.ack(request); });
  const client = await connect({ ...settings, WebSocket: Socket });
  const subscription = client.subscribe('orders', { filter: '/a = 1' });
  const first = subscription.replace({ filter: '/a = 2' });
  Socket.all[0].die();
  await Promise.all([first, subscription.replace({ filter: '/a = 3' })]);
  assert.equal(Socket.all[1].asked.at(-1).filter, '/a = 3');
  assert.equal(subscription.options.filter, '/a = 3');
  client.close();
});

test('a frame that cannot be read is no silent loss, and texts that look like numbers are read', async () => {
  const Socket = sockets(polite);
  const client = await connect({ ...settings, silence: 10000, WebSocket: Socket });
  const seen = [];
  const subscription = client.subscribe('orders', {}, (message) => seen.push(message.data.text));
  await subscription.accepted;
  const subs = [subscription.id];
  const text = 'ab00e123.AAAA.0002.00000000000000001 05e0001';
  Socket.all[0].say({ command: 'publish', subs, data: { text }, bookmarks: { [subscription.id]: 'b1' } });
  await until(() => seen.length);
  assert.deepEqual(seen, [text]);
  Socket.all[0].onmessage({ data: '{' });
  await until(() => Socket.all[1]?.asked.length);
  assert.equal(Socket.all[1].asked[0].resume, 'b1');
  client.close();
});

test('a connection that is lost within a refetch does not go on from the bookmark before it', async () => {
  const Socket = sockets((socket, request, number) => {
    socket.ack(request);
    const subs = [request.id];
    if (number === 1) {
      socket.say({ command: 'group_begin', subs }, { command: 'group_end', subs, bookmarks: { [request.id]: 'b9' } });
      socket.say({ command: 'refetch', subs }, { command: 'group_begin', subs });
      setTimeout(() => socket.die(), 10);
    }
  });
  const client = await connect({ ...settings, WebSocket: Socket });
  client.view('orders');
  await until(() => Socket.all[1]?.asked.length);
  assert.equal(Socket.all[1].asked[0].resume, undefined);
  client.close();
});

test('a numbered command is sent again until it is answered, in its order; another one fails', async () => {
  const Socket = sockets((socket, request, number) => { if (number > 1) socket.ack(request, { ack: 'persisted' }); });
  const client = await connect({ ...settings, WebSocket: Socket });
  const commands = [1, 2, 3].map((sequence) => client.publish('orders', { id: 1 }, { ack: 'persisted', sequence }));
  const plain = client.publish('orders', { id: 1 });
  await until(() => Socket.all[0].asked.length === 4);
  Socket.all[0].die();
  const late = client.publish('orders', { id: 1 }, { ack: 'persisted', sequence: 4 });
  await assert.rejects(plain, { reason: 'disconnected' });
  await Promise.all([...commands, late]);
  assert.deepEqual(Socket.all[1].asked.map(({ sequence }) => sequence), [1, 2, 3, 4]);
  client.close();
});

test('a numbered command that is not taken now is sent again before those behind it', async () => {
  const refusals = { 2: ['unavailable', 'too_many'], 3: ['unavailable', 'unavailable', 'unavailable'], 5: ['undecodable'] };
  const [missed, taken] = [new Set(), []];
  const Socket = sockets((socket, request) => { // As the gateway does: no higher number before one that was missed.
    const { sequence, topic } = request;
    const isOvertaking = topic === 'orders' && Math.min(...missed) < sequence;
    const reason = isOvertaking ? 'unavailable' : refusals[sequence]?.shift();
    if (reason === 'unavailable' || reason === 'too_many') missed.add(sequence);
    else missed.delete(sequence);
    if (reason) socket.refuse(request, reason);
    else {
      taken.push(sequence);
      socket.ack(request, { ack: 'persisted' });
    }
  });
  const client = await connect({ ...settings, publishTimeout: 30000, WebSocket: Socket });
  const send = (sequence, topic = 'orders') => client.publish(topic, { id: 1 }, { ack: 'persisted', sequence });
  const commands = [1, 2, 3].map((sequence) => send(sequence));
  await commands[0];
  const behind = [send(4), send(5), send(6)];
  behind[1].catch(() => {});
  await send(7, 'prices');
  await Promise.all([...commands, behind[0], behind[2]]);
  await assert.rejects(behind[1], { reason: 'undecodable' });
  assert.deepEqual(taken.filter((sequence) => sequence !== 7), [1, 2, 3, 4, 6]);
  refusals[undefined] = ['unavailable'];
  await assert.rejects(send(undefined), { reason: 'unavailable' });
  client.close();
});

test('a numbered command that is not taken in its time fails with those behind it', async () => {
  const Socket = sockets((socket, request) => (request.sequence === 1 ? socket.refuse(request, 'unavailable') : undefined));
  const client = await connect({ ...settings, publishTimeout: 50, WebSocket: Socket });
  const commands = [1, 2].map((sequence) => client.publish('orders', { id: 1 }, { ack: 'persisted', sequence }));
  for (const command of commands) await assert.rejects(command, { reason: 'unavailable' });
  client.close();
});

test('"no" ends the connection and its subscriptions with the reason', async () => {
  const refusing = sockets((socket, request, number) => (number > 1 ? socket.refuse(request, 'logon_failed', 'it was revoked') : socket.ack(request)));
  const client = await connect({ ...settings, token: 't', WebSocket: refusing });
  const view = client.view('orders');
  await until(() => view.subscription.isAsked);
  refusing.all[0].die(4401, 'the token was revoked');
  await assert.rejects(view.ready, /it was revoked/);
  assert.equal(client.state, 'closed');
  assert.equal(refusing.all.length, 2);
  const forbidden = sockets(polite);
  const other = await connect({ ...settings, WebSocket: forbidden });
  const ended = other.view('orders');
  forbidden.all[0].die(4403, 'not from here');
  await assert.rejects(ended.ready, /not from here/);
  assert.equal(other.state, 'closed');
});

test('a token function may give another token after one that was refused', async () => {
  const tokens = ['old', 'new'];
  const Socket = sockets((socket, request) => (request.token === 'old' ? socket.refuse(request, 'logon_failed') : socket.ack(request)));
  const client = await connect({ ...settings, token: () => tokens.shift() ?? 'new', WebSocket: Socket });
  assert.equal(Socket.all.length, 2);
  client.close();
  await assert.rejects(connect({ ...settings, token: () => 'old', WebSocket: Socket }), { reason: 'logon_failed' });
});

test('keys of the issuer that are away are no refusal, also for a fixed token', async () => {
  const Socket = sockets((socket, request, number) => {
    if (number > 3) socket.ack(request);
    else { socket.refuse(request, 'unavailable'); setTimeout(() => socket.die(4503), 1); }
  });
  const client = await connect({ ...settings, token: 't', WebSocket: Socket });
  assert.equal(Socket.all.length, 4);
  client.close();
});

test('a slow reader gets every message: what it leaves waits in the gateway, and nothing more is sent', async () => {
  const total = 30000;
  let at = 0;
  let isSending = false;
  const Socket = sockets((socket, request) => {
    socket.ack(request);
    if (request.op === 'unsubscribe') isSending = false;
    if (request.op !== 'subscribe') return;
    at = Number(request.resume ?? 0);
    isSending = true;
    const send = () => {
      if (!isSending || at >= total) return;
      const messages = Array.from({ length: 500 }, () => ({ command: 'publish', subs: [request.id], sow_key: `${++at}` }));
      messages.at(-1).bookmarks = { [request.id]: `${at}` };
      socket.say(...messages);
      setTimeout(send, 0);
    };
    send();
  });
  const client = await connect({ ...settings, silence: 10000, WebSocket: Socket });
  const subscription = client.subscribe('orders');
  await until(() => subscription.isHeld);
  assert.ok(at < 12000);
  let taken = 0;
  for await (const message of subscription) {
    taken += 1;
    assert.equal(message.sow_key, `${taken}`);
    if (taken % 1000 === 0) await sleep(1);
    if (taken === total) break;
  }
  assert.ok(Socket.all[0].asked.filter(({ op }) => op === 'subscribe').length > 1);
  client.close();
});

test('a slow iterator over the changes of a view ends with an error, and the view goes on', async () => {
  const Socket = sockets((socket, request) => socket.ack(request));
  const client = await connect({ ...settings, WebSocket: Socket });
  const view = client.view('orders');
  await until(() => view.subscription.isKnown);
  const iterator = view[Symbol.asyncIterator]();
  const subs = [view.subscription.id];
  for (let frame = 0; frame < 30; frame += 1) {
    Socket.all[0].say(...Array.from({ length: 500 }, (_, n) => ({ command: 'publish', subs, sow_key: `${frame * 500 + n}`, data: {} })));
  }
  await until(() => view.size === 15000);
  await assert.rejects((async () => { for (;;) if ((await iterator.next()).done) return; })(), { reason: 'too_slow' });
  client.close();
});
