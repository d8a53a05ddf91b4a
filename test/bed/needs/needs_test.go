package needs

import "testing"

// All that is missing is named at once, with one command.
func TestCheck(t *testing.T) {
	sh, no, other := Program{"sh", "dash"}, Program{"scon-none-1", "one"}, Program{"scon-none-2", "two"}
	for _, c := range []struct {
		programs []Program
		want     string
	}{
		{[]Program{sh}, ""},
		{[]Program{sh, no}, "scon-none-1 is missing: apt-get install one"},
		{[]Program{no, sh, other, {"scon-none-3", "two"}, no}, "scon-none-1, scon-none-2, scon-none-3 are missing: apt-get install one two"},
	} {
		got := ""
		if err := Check(c.programs...); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.programs, got, c.want)
		}
	}
}
