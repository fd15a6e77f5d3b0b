// Shows, at the pointer, each series' value: of the nearest point, or of the step that holds there.
for (const figure of document.querySelectorAll('figure.chart')) {
  const source = figure.querySelector('script');
  if (!source) continue;
  const {x: [low, high, left, right, log], labels, series} = JSON.parse(source.textContent);
  const svg = figure.querySelector('svg'), cursor = svg.querySelector('.cursor');
  const tip = Object.assign(document.createElement('div'), {className: 'tip', hidden: true});
  figure.append(tip);
  const bend = v => log ? Math.log10(v) : v, show = v => +v.toPrecision(4);
  const at = (points, value, step) => {
    let a = 0, b = points.length - 1;
    while (a < b) {
      const middle = (a + b + 1) >> 1;
      if (points[middle][0] <= value) a = middle; else b = middle - 1;
    }
    const next = points[a + 1];
    if (!step && next && Math.abs(bend(next[0]) - bend(value)) <
        Math.abs(bend(points[a][0]) - bend(value))) a++;
    return points[a];
  };
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width - left) / (right - left);
    if (share < 0 || share > 1) { leave(); return; }
    const raw = bend(low) + share * (bend(high) - bend(low)), value = log ? 10 ** raw : raw;
    const rows = series.map(([name, slot, step, points]) => {
      const point = at(points, value, step), row = document.createElement('div');
      const dot = document.createElement('i');
      dot.style.background = `var(--s${slot})`;
      row.append(dot, `${name}: ${show(point[1])}` + (step ? '' : ` at ${show(point[0])}`));
      return row;
    });
    const head = document.createElement('div');
    head.textContent = `${show(value)} ${labels[0]}`;
    tip.replaceChildren(head, ...rows);
    tip.hidden = false;
    const x = (left + share * (right - left)) * svg.viewBox.baseVal.width;
    cursor.setAttribute('x1', x); cursor.setAttribute('x2', x);
    cursor.style.visibility = 'visible';
    const side = event.clientX - box.left, over = side > box.width / 2;
    tip.style.left = over ? '' : `${side + 30}px`;
    tip.style.right = over ? `${box.width - side + 30}px` : '';
    tip.style.top = `${event.clientY - figure.getBoundingClientRect().top}px`;
  });
  const leave = () => { tip.hidden = true; cursor.style.visibility = 'hidden'; };
  svg.addEventListener('pointerleave', leave);
}
