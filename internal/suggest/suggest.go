// Package suggest suggests the intended name for a misspelt one.
package suggest

import "fmt"

// Match returns the name most similar to word, or "" if none is similar enough: at
// most one edit for three letters of the longer one.
func Match(word string, names []string) string {
	best, least := "", len(word)+1
	for _, name := range names {
		if d := distance(word, name); d < least && d <= max(len(word), len(name))/3 {
			best, least = name, d
		}
	}
	return best
}

// Hint returns the end of an error message: `: did you mean "NAME"?`, or "".
func Hint(word string, names []string) string {
	if m := Match(word, names); m != "" {
		return fmt.Sprintf(": did you mean %q?", m)
	}
	return ""
}

// distance returns how many letters have to be changed, added, left out or swapped with the
// next one to make one word of another.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
