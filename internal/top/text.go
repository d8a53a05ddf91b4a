package top

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// number formats a rate or a count in at most five characters: 0, 0.3, 12, 999, 1.2k, 340k.
func number(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 9.95:
		return fmt.Sprintf("%.1f", n)
	case n < 999.5:
		return fmt.Sprintf("%.0f", n)
	}
	for _, unit := range "kMGTP" {
		if n /= 1000; n < 9.95 {
			return fmt.Sprintf("%.1f%c", n, unit)
		} else if n < 999.5 {
			return fmt.Sprintf("%.0f%c", n, unit)
		}
	}
	return fmt.Sprintf("%.0fE", n/1000)
}

// share formats part of all in percent. It rounds down: only all is 100 %.
func share(part, rest float64) string {
	if part+rest == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", math.Floor(100*part/(part+rest)))
}

// bar draws part of all.
func bar(part, rest float64, width int) string {
	if part+rest == 0 {
		return strings.Repeat("░", width)
	}
	full := int(float64(width) * part / (part + rest))
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}

// millis formats a duration of the API.
func millis(ms int64) string {
	switch d := time.Duration(ms) * time.Millisecond; {
	case d < time.Second:
		return fmt.Sprintf("%dms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	default:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
}
