// Copyright: (c) 2026, dgxspark.vllm contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
// Keeps the live page up to date by server-sent events, and draws the last hour of each Spark with uPlot. Without it the page is static.
'use strict';

const CHARTS = [['memory', 'GiB'], ['GPU load', '%'], ['power', 'W'], ['tok/s', '']]; // as CHARTS of live_page.py
const BUCKET = 30, BUCKETS = 120; // as in live_server.py
const RISKY = ['stop', 'cold', 'drain'];
const main = document.querySelector('main');
const wanted = document.getElementById('keep-up'), notice = document.getElementById('kept-up'), done = document.getElementById('done');
const hours = new Map(); // id of a host -> columns: times, then a column for each chart
const visible = new Set();
let ages = {}, offset = 0, source = null, asked = new Set(), timer = 0;

document.body.classList.add('live');

// --- charts: only of tiles on the screen, since a fleet has hundreds

let chartWidth = 0, colour = '';

function build(box) {
  if (!chartWidth) { // asked once: each question would lay out the page anew
    chartWidth = Math.max(box.clientWidth / 2 - 7, 60);
    colour = getComputedStyle(document.body).getPropertyValue('--info');
  }
  box.plots = CHARTS.map(([name]) => {
    const chart = document.createElement('div');
    chart.className = 'chart';
    chart.setAttribute('role', 'img');
    const caption = document.createElement('div');
    chart.append(caption);
    box.append(chart);
    const plot = new uPlot({
      width: chartWidth, height: 28, legend: {show: false}, cursor: {show: false}, padding: [2, 0, 2, 0],
      axes: [{show: false}, {show: false}],
      scales: {x: {time: true}, y: {range: (_plot, low, high) => [Math.min(low ?? 0, 0), Math.max(high ?? 1, 1)]}},
      series: [{}, {stroke: colour, width: 1.5, points: {show: false}}],
    }, [[], []], chart);
    return {name, chart, caption, plot};
  });
}

function draw(box) {
  const columns = hours.get(box.dataset.of);
  if (!columns) return;
  if (!box.plots) build(box);
  box.plots.forEach(({name, chart, caption, plot}, index) => {
    const values = columns[index + 1], known = values.filter((value) => value !== null);
    const unit = CHARTS[index][1] && ` ${CHARTS[index][1]}`;
    const round = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1));
    const text = known.length ? `${name} ${round(Math.min(...known))} to ${round(Math.max(...known))}${unit}` : `${name} not measured`;
    if (caption.textContent !== text) {
      caption.textContent = text;
      chart.setAttribute('aria-label', `last hour: ${text}`);
    }
    plot.setData([columns[0], values]);
  });
}

async function fetchHours() {
  timer = 0;
  const keys = [...asked].slice(0, 100);
  asked = new Set();
  if (!keys.length) return;
  try {
    const answer = await (await fetch(`/hour.json?hosts=${keys.join(',')}`, {cache: 'no-store'})).json();
    for (const [key, columns] of Object.entries(answer)) hours.set(key, columns);
    for (const box of visible) draw(box);
  } catch (error) {
    keys.forEach((key) => asked.add(key)); // with the next tile
  }
}

const watcher = new IntersectionObserver((entries) => {
  for (const {target, isIntersecting} of entries) {
    if (!isIntersecting) {
      visible.delete(target);
      continue;
    }
    visible.add(target);
    if (hours.has(target.dataset.of)) draw(target);
    else asked.add(target.dataset.of);
  }
  if (asked.size && !timer) timer = setTimeout(fetchHours, 20);
}, {rootMargin: '200px'});
document.querySelectorAll('.charts').forEach((box) => watcher.observe(box));

function addPoint(key, point) {
  const columns = hours.get(key);
  if (!columns) return;
  const times = columns[0];
  const isSame = times.length && Math.floor(times[times.length - 1] / BUCKET) === Math.floor(point[0] / BUCKET);
  columns.forEach((column, index) => {
    if (isSame) column.pop();
    column.push(point[index]);
    if (column.length > BUCKETS) column.shift();
  });
}

// --- parts: only what differs is changed, so focus and selection stay, and the browser lays out little

function patch(old, fresh) {
  if (old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
  } else if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
  } else {
    for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    if (old.matches('time.age')) return; // showAges writes its text
    const before = [...old.childNodes], after = [...fresh.childNodes];
    after.forEach((node, index) => (before[index] ? patch(before[index], node) : old.append(node)));
    before.slice(after.length).forEach((node) => node.remove());
  }
}

function patchParts(parts) {
  const entries = Object.entries(parts);
  const isRow = ([id]) => id.startsWith('service-');
  for (const chosen of [entries.filter(isRow), entries.filter((entry) => !isRow(entry))]) {
    const template = document.createElement('template'); // one for rows, which the parser of HTML takes only without others
    template.innerHTML = chosen.map(([, html]) => html).join('');
    for (const fresh of [...template.content.children]) {
      const old = document.getElementById(fresh.id);
      if (old) patch(old, fresh);
    }
  }
}

function showAges() {
  const now = Date.now() / 1000 - offset;
  for (const element of document.querySelectorAll('time.age')) {
    const at = ages[element.dataset.of];
    if (at === undefined) continue;
    const seconds = Math.max(Math.round(now - at), 0);
    const [size, unit] = seconds < 100 ? [1, 's'] : seconds < 6000 ? [60, 'min'] : [3600, 'h'];
    const text = at === null ? 'never seen' : `${Math.round(seconds / size)} ${unit} ago`;
    if (element.textContent !== text) element.textContent = text;
  }
}

function receive(event) {
  const message = JSON.parse(event.data);
  if (message.shape !== main.dataset.shape) { // a host or service came or went
    location.reload();
    return;
  }
  offset = Date.now() / 1000 - message.at;
  ages = message.ages;
  patchParts(message.parts);
  for (const [key, point] of Object.entries(message.points)) addPoint(key, point);
  for (const box of visible) draw(box);
  main.dataset.frame = event.lastEventId;
  showAges();
}

// --- the connection; a hidden page reads nothing, so that agents rest

function connect() {
  const isOn = wanted.checked && !document.hidden;
  if (isOn && !source) {
    source = new EventSource(`/events?after=${main.dataset.frame}`);
    source.onmessage = receive;
    source.onopen = () => { notice.textContent = ''; };
    source.onerror = () => {
      notice.textContent ||= `No answer since ${new Date().toLocaleTimeString()}: what is shown is old.`;
      if (source.readyState === EventSource.CLOSED) { // a refusal is final for a browser
        source = null;
        setTimeout(connect, 5000);
      }
    };
  } else if (!isOn && source) {
    source.close();
    source = null;
  }
}

wanted.addEventListener('change', connect);
document.addEventListener('visibilitychange', connect);
setInterval(showAges, 1000);
connect();

// --- actions

document.addEventListener('click', async (event) => {
  const button = event.target.closest('button[data-verb]');
  if (!button) return;
  const {verb, host, service} = button.dataset;
  if (RISKY.includes(verb) && !confirm(`${verb} ${service} on ${host}?`)) return;
  button.disabled = true;
  done.textContent = `${verb} ${service}: asked`;
  try {
    const body = JSON.stringify({verb, host, service});
    const answer = await fetch('/act', {method: 'POST', headers: {'Content-Type': 'application/json'}, body});
    const text = await answer.text();
    done.textContent = `${verb} ${service}: ${answer.ok ? JSON.parse(text).text : text}`;
  } catch (error) {
    done.textContent = `${verb} ${service}: no answer`;
  }
  button.disabled = false;
});
