"""The style sheet of the page of ``scrapy bloom report``."""

STYLE = """
:root { --page: #f6f7f9; --card: #fff; --text: #1b2430; --soft: #566273; --rule: #dfe4ea;
  --open: #1f6feb; --kept: #bcd4f6; --good: #17683a; --bad: #b3261e; --now: #1b2430 }
@media (prefers-color-scheme: dark) { :root { --page: #10151c; --card: #19212b; --text: #e8edf3;
  --soft: #a3b0bf; --rule: #2d3845; --open: #6ea8ff; --kept: #2b4568; --good: #6fd69a;
  --bad: #ff9a90; --now: #e8edf3 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui,
  -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px }
header p, section > p { margin: 0; color: var(--soft); overflow-wrap: anywhere }
h1 { margin: 0; font-size: 30px; line-height: 1.2; letter-spacing: -.02em }
h2 { margin: 0; font-size: 21px; line-height: 1.3; overflow-wrap: anywhere }
h3 { margin: 32px 0 10px; font-size: 15px }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace }
section { margin-top: 28px; padding: 28px; background: var(--card); border: 1px solid var(--rule);
  border-radius: 12px }
section > p.none { margin-top: 8px }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(215px, 1fr)); gap: 24px 32px;
  margin: 24px 0 0 }
.tile { border-top: 2px solid var(--rule); padding-top: 10px }
.tile.bad { border-color: var(--bad) }
.tile.bad .value { color: var(--bad) }
dt { color: var(--soft); font-size: 13px }
dd { margin: 0 }
.value { font-size: 22px; font-weight: 600; line-height: 1.35; letter-spacing: -.01em }
.note { color: var(--soft); font-size: 13px }
.bar { display: block; width: 100%; height: 8px; margin-top: 6px; border-radius: 4px }
rect.open, i.open { fill: var(--open); background: var(--open) }
rect.kept, i.kept { fill: var(--kept); background: var(--kept) }
.row { display: grid; grid-template-columns: 84px 1fr 56px; gap: 12px; align-items: center;
  font-size: 13px; height: 28px }
.row > span:last-child { text-align: right }
.row svg { display: block; width: 100%; height: 16px; border-radius: 3px }
.row line { stroke: var(--now); stroke-width: 2; vector-effect: non-scaling-stroke }
.scale { position: relative; height: 20px }
.now { position: absolute; white-space: nowrap; color: var(--soft) }
.now.middle { transform: translateX(-50%) }
.now.left { transform: translateX(-100%) }
section > p.key { font-size: 13px; margin-top: 4px }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 6px 0 0;
  vertical-align: -1px }
.key i + i, .key i.kept { margin-left: 14px }
table { width: 100%; border-collapse: collapse; font-size: 14px }
th { color: var(--soft); font-weight: 500; font-size: 13px }
th, td { padding: 8px 0 8px 16px; text-align: right; border-bottom: 1px solid var(--rule);
  overflow-wrap: anywhere }
th:first-child, td:first-child { padding-left: 0; text-align: left }
.workers th:nth-child(-n+3), .workers td:nth-child(-n+3) { text-align: left }
.state { font-weight: 600 }
.alive { color: var(--good) }
.dead { color: var(--bad) }
.stopped { color: var(--soft) }
@media (max-width: 800px) {
  main { padding: 24px 12px 40px }
  section { padding: 20px 16px; margin-top: 20px }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
  table, tbody { display: block }
  tr { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 8px 16px;
    padding: 12px 0; border-bottom: 1px solid var(--rule) }
  table td, table td:first-child, .workers td:nth-child(n) { display: block; padding: 0; border: 0;
    text-align: left }
  .workers td:first-child { grid-column: 1 / -1 }
  td::before { content: attr(data-label); display: block; color: var(--soft); font-size: 12px }
}
@media (max-width: 520px) { .tiles { grid-template-columns: 1fr; gap: 18px }
  .row { grid-template-columns: 78px 1fr 48px; gap: 8px } }
@media print { body { background: none } section { break-inside: avoid } }
"""
