package differential

import (
	"slices"
	"time"
)

// shrinking bounds the time that shrinking a case takes.
const shrinking = 30 * time.Second

// shrink removes elements of a case that a difference of the same packet does not need. It returns
// the smallest case that still has one, and that difference.
func (p *pair) shrink(c *Case, d *difference) (*Case, *difference, error) {
	end := time.Now().Add(shrinking)
	differs := func(smaller *Case) (bool, error) {
		if time.Now().After(end) {
			return false, nil
		}
		found, err := p.run(smaller)
		if err != nil || found == nil || found.of != d.of {
			return false, err
		}
		c, d = smaller, found
		return true, nil
	}
	for was := 0; was != c.size(); {
		was = c.size()
		for _, without := range []func(c *Case, from, n int) (*Case, bool){(*Case).withoutSteps, (*Case).withoutItems, (*Case).withoutRules} {
			if err := leaveOut(func() *Case { return c }, without, differs); err != nil {
				return c, d, err
			}
		}
	}
	return c, d, nil
}

// leaveOut tries to remove ever smaller groups of them.
func leaveOut(now func() *Case, without func(c *Case, from, n int) (*Case, bool), differs func(*Case) (bool, error)) error {
	for n := 64; n > 0; n /= 2 {
		for from := 0; ; {
			smaller, any := without(now(), from, n)
			if !any {
				break
			}
			smallerDiffers, err := differs(smaller)
			if err != nil {
				return err
			}
			if !smallerDiffers {
				from += n
			}
		}
	}
	return nil
}

// size is the number of removable elements.
func (c *Case) size() int {
	n := len(c.Rules.Rules) + len(c.Steps)
	for _, s := range c.Steps {
		n += len(s.Items)
	}
	return n
}

// cut removes n elements of a list from an index on.
func cut[T any](list []T, from, n int) []T {
	return slices.Delete(slices.Clone(list), min(from, len(list)), min(from+n, len(list)))
}

func (c Case) withoutSteps(from, n int) (*Case, bool) {
	any := from < len(c.Steps)
	c.Steps, c.Part = cut(c.Steps, from, n), true
	return &c, any
}

func (c Case) withoutRules(from, n int) (*Case, bool) {
	any := from < len(c.Rules.Rules)
	c.Rules.Rules = cut(c.Rules.Rules, from, n)
	return &c, any
}

// withoutItems numbers the items of all steps.
func (c Case) withoutItems(from, n int) (*Case, bool) {
	any := false
	c.Steps = slices.Clone(c.Steps)
	for i := range c.Steps {
		items := c.Steps[i].Items
		at := max(from, 0)
		if at < len(items) && n > 0 {
			any = true
			c.Steps[i].Items = cut(items, at, n)
			n -= min(n, len(items)-at)
		}
		from -= len(items)
	}
	return &c, any
}
