package hooks

import (
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/discover"
)

// A container is selected by its name, its ID, also its short one, or a label.
func TestDeclared(t *testing.T) {
	id, value, empty := strings.Repeat("0123456789ab", 6)[:64], "yes", ""
	c := discover.Container{Name: "db", ID: id, Runtime: "docker", Labels: map[string]string{"policy": "yes", "none": ""}}
	for _, x := range []struct {
		selector config.Selector
		want     bool
	}{
		{config.Selector{Name: "db"}, true},
		{config.Selector{Name: id}, true},
		{config.Selector{Name: id[:12]}, true},
		{config.Selector{Name: "d"}, false},
		{config.Selector{Device: "db"}, false},
		{config.Selector{Label: "policy"}, true},
		{config.Selector{Label: "policy", Value: &value}, true},
		{config.Selector{Label: "policy", Value: &empty}, false},
		{config.Selector{Label: "none"}, true},
		{config.Selector{Label: "none", Value: &empty}, true},
		{config.Selector{Label: "other"}, false},
		{config.Selector{Label: "other", Value: &empty}, false},
	} {
		d := newDeclared([]config.Selector{{Name: "another"}, x.selector})
		if got := d.container(c) != ""; got != x.want {
			t.Errorf("%v selects %+v: %v", x.selector, c, got)
		}
		if !x.want && d.container(discover.Container{}) != "" {
			t.Errorf("%v selects a container without a name", x.selector)
		}
	}
	for _, x := range []struct {
		selector config.Selector
		c        discover.Container
		want     bool
	}{
		{config.Selector{Name: "x"}, c, true},
		{config.Selector{Name: "x"}, discover.Container{Name: "veth1"}, false},
		{config.Selector{Name: "x"}, discover.Container{Name: id[:12], ID: id, Unknown: true}, false},
		{config.Selector{Name: "x"}, discover.Container{Name: "db", ID: id, Unknown: true}, true},
		{config.Selector{Label: "x"}, discover.Container{Name: "db", ID: id, Unknown: true}, false},
	} {
		if got := newDeclared([]config.Selector{x.selector}).isIdentified(x.c); got != x.want {
			t.Errorf("with %v, %+v is identified: %v", x.selector, x.c, got)
		}
	}
	// An engine that does not answer is asked again, also where nothing depends on the name.
	for _, x := range []struct {
		selectors []config.Selector
		try       int
		c         discover.Container
		want      bool
	}{
		{nil, 0, discover.Container{Name: id[:12], ID: id, Unknown: true}, false},
		{nil, nameTries - 1, discover.Container{Name: id[:12], ID: id, Unknown: true}, true},
		{nil, 0, discover.Container{Name: "db", ID: id, Unknown: true}, true},
		{nil, 0, discover.Container{Name: "veth1"}, true},
		{nil, 0, discover.Container{Name: "db", Pod: "p"}, false},
		{[]config.Selector{{Name: "x"}}, nameTries, discover.Container{Name: id[:12], ID: id, Unknown: true}, false},
		{[]config.Selector{{Name: "x"}}, 0, c, true},
	} {
		if got := newDeclared(x.selectors).enough(x.try, x.c); got != x.want {
			t.Errorf("with %v, %+v is enough at try %d: %v", x.selectors, x.c, x.try, got)
		}
	}
}
