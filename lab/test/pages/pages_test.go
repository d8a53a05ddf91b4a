package pages

import "testing"

func TestShows(t *testing.T) {
	const printed = "| a | b |\n| - | - |\n| 1 | 2 |\n| 3 | 4 |\n\n| rules |\n| - |\n| r |\n\nMachine, kernel.\nMedians.\n"
	for document, want := range map[string]bool{
		"# Page\n\n| a | b |\n| - | - |\n| 3 | 4 |\n\nMachine,\nkernel. Medians.\n\nText.\n":   true,
		"# Page\n\n| a | b |\n| - | - |\n| 1 | 2 |\n| 3 | 4 |\n\nMachine, kernel.\nMedians.\n": true,
		"# Page\n\n| a | b |\n| - | - |\n| 3 | 5 |\n\nMachine, kernel. Medians.\n":             false,
		"# Page\n\n| a | b |\n| - | - |\n\nMachine, kernel. Medians.\n":                        false,
		"# Page\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\nMachine, another kernel. Medians.\n":     false,
		"# Page\n\n| x | y |\n| - | - |\n| 1 | 2 |\n\nMachine, kernel. Medians.\n":             false,
		"# Page\n": false,
		"# Page\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\nMachine, kernel. Medians.\nMore.\n\n| a |\n\nx\n": false,
	} {
		if got := shows(document, printed); got != want {
			t.Errorf("%v for\n%s", got, document)
		}
	}
}
