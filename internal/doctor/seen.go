package doctor

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/results"
)

// notMeasured is said of what no committed result has looked at.
const notMeasured = "not measured here"

// seen is what the committed result of `scon pin advise` says of the candidates
// whose names have a word.
func seen(word string) string {
	if word == "" {
		return notMeasured
	}
	var r struct {
		Machine string `json:"machine"`
		Kernel  string `json:"kernel"`
		pin.Advice
	}
	if err := json.Unmarshal(results.Advice, &r); err != nil {
		return notMeasured
	}
	var found, better, worse int
	for _, v := range r.Verdicts {
		if v.Refused != "" || !strings.Contains(v.Name, word) {
			continue
		}
		found++
		switch {
		case v.Worse:
			worse++
		case v.Better:
			better++
		}
	}
	if found == 0 {
		return notMeasured
	}
	return fmt.Sprintf("of %d candidates %d were better, %d worse than doing nothing (%s, Linux %s, results/pin-advise.json)",
		found, better, worse, r.Machine, r.Kernel)
}
