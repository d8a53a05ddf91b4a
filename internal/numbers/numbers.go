// Package numbers writes numbers for people, in one form wherever SCON prints some:
//
//   - a number and its unit stand apart: 99.9 %, 1.2 MB, 20 ms
//   - below 100 of a prefix, or of a unit of time from a second on, with one decimal
//   - a number that is shown as 0 is 0, and a share that is shown as 100 % is all
//
// internal/web/page/text.js has the same functions for the live page.
package numbers

import (
	"fmt"
	"math"
	"time"
)

// number is what counters and rates are.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// Count formats a number of things, or a rate of them, in at most five characters: 0,
// <0.1, 0.3, 12, 999, 1.2k, 35.4k, 340k.
func Count[N number](count N) string {
	n, prefix := scaled(float64(count))
	switch {
	case prefix != "":
		return decimal(n) + prefix
	case n == 0:
		return "0"
	case n < 0.05:
		return "<0.1"
	case n < 9.95 && n != math.Trunc(n):
		return fmt.Sprintf("%.1f", n)
	default:
		return fmt.Sprintf("%.0f", n)
	}
}

// Bytes formats a number of bytes, or a rate of them: 999 B, 1.2 kB, 38.6 MB, 340 GB.
func Bytes[N number](bytes N) string {
	n, prefix := scaled(float64(bytes))
	if prefix == "" {
		return Count(n) + " B"
	}
	return decimal(n) + " " + prefix + "B"
}

// scaled returns n as 0 to 999 of a prefix of powers of 1000.
func scaled(n float64) (float64, string) {
	if n < 999.5 {
		return n, ""
	}
	prefixes := "kMGTPE"
	for i := range prefixes {
		if n /= 1000; n < 999.5 || i == len(prefixes)-1 {
			return n, prefixes[i : i+1]
		}
	}
	return n, ""
}

// decimal formats three digits at most, one of them a decimal.
func decimal(n float64) string {
	if n < 99.95 {
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// Share formats part of part+rest in percent, "-" if both are 0. Next to 0 and to 100 it
// has a decimal: 0 %, <0.1 %, 0.4 %, 1 %, 93 %, 99.0 %, 99.9 %, 100 %.
func Share[N number](part, rest N) string {
	all := float64(part) + float64(rest)
	percent := 100 * float64(part) / all
	switch {
	case all == 0:
		return "-"
	case part == 0:
		return "0 %"
	case rest == 0:
		return "100 %"
	case percent < 0.05:
		return "<0.1 %"
	case percent < 0.95:
		return fmt.Sprintf("%.1f %%", percent)
	case percent >= 98.95:
		return fmt.Sprintf("%.1f %%", min(percent, 99.9))
	default:
		return fmt.Sprintf("%.0f %%", percent)
	}
}

// Millis formats a time in milliseconds, in one unit: 730 ms, 12.3 s, 1.0 min, 25.0 h,
// 3.2 d.
func Millis(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", ms)
	case d < time.Minute:
		return tenths(d, time.Second) + " s"
	case d < time.Hour:
		return tenths(d, time.Minute) + " min"
	case d < 48*time.Hour:
		return tenths(d, time.Hour) + " h"
	default:
		return tenths(d, 24*time.Hour) + " d"
	}
}

// tenths rounds down: 59.96 s are no minute yet.
func tenths(d, unit time.Duration) string {
	return decimal(math.Floor(10*float64(d)/float64(unit)) / 10)
}

// Often is how often something happens, given how many times a second, which is more than 0:
// "16 a second", "one in 38.5 s".
func Often(perSecond float64) string {
	if perSecond < 1 {
		return "one in " + Millis(int64(1000/perSecond))
	}
	return Count(perSecond) + " a second"
}
