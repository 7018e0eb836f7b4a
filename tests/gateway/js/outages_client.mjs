// The JavaScript client of tests/programs/gateway/outages.py, in Node and in a browser: it does as it is told, and says what it holds.

/** The calls of the program, over the `connect` of a client. */
export function driven(connect, settings) {
  const views = new Map();
  const changing = new Map();
  const errors = {};
  let client;
  return {
    async open() { client = await connect(settings); },
    begin(name, options) {
      const view = client.view('orders', options);
      view.addEventListener('error', ({ error }) => { errors[name] = `${error.reason}: ${error.message}`; });
      views.set(name, view);
      changing.set(name, 0);
    },
    replace(name, changes) {
      changing.set(name, changing.get(name) + 1);
      const done = () => changing.set(name, changing.get(name) - 1);
      views.get(name).replace(changes).then(done, (error) => {
        if (views.has(name)) errors[name] = `replace: ${error.reason}: ${error.message}`;
        done();
      });
    },
    end(name) {
      views.get(name).close();
      views.delete(name);
      delete errors[name];
    },
    busy(wait) {
      const until = Date.now() + wait;
      while (Date.now() < until);
    },
    state() {
      const held = [...views].map(([name, view]) => [name, {
        held: Object.fromEntries(view), bookmark: view.subscription.bookmark, live: view.subscription.isLive, changing: changing.get(name),
      }]);
      return { state: client.state, errors, views: Object.fromEntries(held) };
    },
  };
}

/** In Node: a line with a call, and a line with its answer. */
async function serve() {
  const { createInterface } = await import('node:readline');
  const { connect } = await import('../../../processor/gateway/web/sowstream.js');
  const calls = driven(connect, JSON.parse(process.argv[2]));
  for await (const line of createInterface({ input: process.stdin })) {
    const [name, ...fields] = JSON.parse(line);
    process.stdout.write(`${JSON.stringify(await calls[name](...fields) ?? null)}\n`);
  }
  process.exit(0);
}

if (globalThis.process?.argv[1]?.endsWith('outages_client.mjs')) await serve();
