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

// distance returns the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
