// Where the suites' daemon is, and what they do with it beside asking through a client.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

export const URL = process.env.ZLLM_URL;
export const MODEL = process.env.ZLLM_MODEL;

/** Has the daemon killed, as a power cut would, and started again; returns when it is ready. */
export async function restart() {
  const [host, port] = process.env.ZLLM_RESTART.split(':');
  const connection = connect({ host, port: Number(port) });
  const [said] = await once(connection, 'data');
  assert.equal(String(said), 'ready\n');
  connection.destroy();
}

/** What `zllmctl` prints; it finds the daemon by `ZLLM_SOCKET`. */
const zllmctl = (...args) =>
  execFileSync(process.env.ZLLM_CTL, args, { encoding: 'utf8', stdio: 'pipe', timeout: 60_000 });

/** Keys with tenants of these names, for `use`. The daemon wants a key of everybody until they are taken back at the end. */
export async function withKeys(names, use) {
  const made = [];
  try {
    const keys = names.map((name) => {
      const key = zllmctl('keys', 'add', name).trim();
      made.push(name);
      return key;
    });
    await use(keys);
  } finally {
    for (const name of made) zllmctl('keys', 'revoke', name);
  }
}

/** The value of one of the daemon's metrics, with its labels as `/metrics` has them. */
export async function metric(name) {
  const lines = (await (await fetch(`${URL}/metrics`)).text()).split('\n');
  const line = lines.find((line) => line.startsWith(`${name} `));
  assert.ok(line, `no metric ${name}`);
  return Number(line.split(' ')[1]);
}

/** Waits until no job runs or waits; fails when one still does. */
export async function waitUntilIdle(withinMs = 2000) {
  const giveUp = performance.now() + withinMs;
  for (;;) {
    const running = await metric('zllm_jobs{state="running"}');
    const queued = await metric('zllm_jobs{state="queued"}');
    if (running + queued === 0) return;
    assert.ok(performance.now() < giveUp, `after ${withinMs} ms ${running} jobs run and ${queued} wait`);
    await sleep(20);
  }
}
