// Package near finds what somebody meant by a name that does not exist.
package near

import "fmt"

// Match is the one of names that word was most likely meant to be, or "" when
// none is near: at most one wrong letter in three of the longer one.
func Match(word string, names []string) string {
	best, least := "", len(word)+1
	for _, name := range names {
		if d := distance(word, name); d < least && d <= max(len(word), len(name))/3 {
			best, least = name, d
		}
	}
	return best
}

// Hint is the end of an error message: `: did you mean "NAME"?`, or "".
func Hint(word string, names []string) string {
	if m := Match(word, names); m != "" {
		return fmt.Sprintf(": did you mean %q?", m)
	}
	return ""
}

// distance is how many letters must be put in, taken out or changed to make
// b of a (Levenshtein).
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
