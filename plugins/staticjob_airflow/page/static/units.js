// Numbers as people read them, spelled as staticjob/terminal/units.py spells them; null is a dash.

const UNKNOWN = "–";

const known = (show) => (value) => (value === null || value === undefined ? UNKNOWN : show(value));

function scaled(value, step, units, digits) {
  let unit = 0;
  while (Math.abs(value) >= step * 0.9995 && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  return digits(value, unit) + units[unit];
}

export const whole = known((value) => value.toLocaleString("en-US"));

export const percent = known((share) => `${(100 * share).toFixed(1)}%`);

export const size = known((bytes) =>
  scaled(bytes, 1024, [" B", " KiB", " MiB", " GiB", " TiB"], (value, unit) => value.toFixed(unit ? 1 : 0)),
);

const threeDigits = (part) => String(Number(part.toPrecision(3)));

export const count = known((value) => {
  if (Math.abs(value) >= 999999.5) return scaled(value / 1e6, 1000, [" M", " G", " T"], threeDigits);
  return Math.abs(value) >= 999.5 ? whole(Math.round(value)) : threeDigits(value);
});

export const duration = known((seconds) => {
  if (seconds < 60) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds) - 60 * minutes} s`;
  return `${whole(Math.floor(minutes / 60))} h ${minutes % 60} min`;
});

export const money = known((amount) => {
  if (amount === 0 || amount >= 0.0995) return `$${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return amount >= 1e-4 ? `$${Number(amount.toPrecision(2))}` : `$${amount.toExponential(1)}`;
});

export const time = known((moment) =>
  new Date(moment).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }),
);
