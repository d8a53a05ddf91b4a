package needs

import "testing"

// All that is missing is named at once, with one command.
func TestCheck(t *testing.T) {
	sh, no, other := Program{Name: "sh", Package: "dash"}, Program{Name: "scon-none-1", Package: "one"}, Program{Name: "scon-none-2", Package: "two"}
	client := Program{Name: "scon-none-4", Package: "client", With: "two"}
	for _, c := range []struct {
		programs []Program
		want     string
	}{
		{[]Program{sh}, ""},
		{[]Program{sh, no}, "scon-none-1 is missing: apt-get install one"},
		{[]Program{no, sh, other, {Name: "scon-none-3", Package: "two"}, no}, "scon-none-1, scon-none-2, scon-none-3 are missing: apt-get install one two"},
		{[]Program{client, other}, "scon-none-4, scon-none-2 are missing: apt-get install two"},
		{[]Program{client, no}, "scon-none-4, scon-none-1 are missing: apt-get install client one"},
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
