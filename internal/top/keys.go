package top

import (
	"strings"
	"unicode"

	"github.com/scon-project/scon/internal/live"
)

const help = `tab, shift+tab    containers, connections, changes
up, down, j, k    select a row; pgup, pgdown, home, end go farther
enter             explain the selected connection or container
c                 connections of the selected container
s, r              sort by the next column; reverse the order
/                 filter; enter ends, esc clears it
space             freeze, and go on
esc               back
?                 this page
q, ctrl+c         quit

A filter is words that all have to match, anywhere in a row or after a key:
container:web  peer:10.0.0.1  reason:no_entry  way:bridged  proto:udp  direction:in

EXPRESS/s and REGULAR/s are packets per second. The rate of regular packets of a
connection is conntrack's, "-" without net.netfilter.nf_conntrack_acct.
`

// press applies a key.
func (m *Model) press(k key) command {
	switch {
	case k.name == "ctrl+c":
		return func() any { return quit{} }
	case m.editing:
		m.pressEditing(k)
		return nil
	case m.page != nil && m.pressPage(k.name):
		return nil
	}
	switch k.name {
	case "q":
		return func() any { return quit{} }
	case "?":
		m.page = &page{title: "Keys", lines: m.wrap(help)}
	case "tab":
		m.turn(1)
	case "shift+tab":
		m.turn(tables - 1)
	case "space":
		if m.frozen = !m.frozen; !m.frozen {
			m.show()
		}
	case "s":
		m.order[m.table] = (m.order[m.table] + 1) % max(1, m.orders())
		m.arrange()
	case "r":
		m.reverse = !m.reverse
		m.arrange()
	case "/":
		m.editing = true
	case "esc":
		m.edit("")
	case "c":
		m.ofContainer()
	case "enter":
		return m.explain()
	default:
		m.move(k.name, &m.cursor[m.table], m.rows())
	}
	return nil
}

// turn shows another table.
func (m *Model) turn(by int) { m.table = (m.table + by) % tables }

// orders is how many orders the table has.
func (m *Model) orders() int {
	switch m.table {
	case containersTable:
		return len(live.ContainerOrders)
	case connectionsTable:
		return len(live.ConnectionOrders)
	default:
		return 0
	}
}

// move applies a key that moves a place among n.
func (m *Model) move(key string, at *int, n int) {
	switch key {
	case "up", "k":
		*at--
	case "down", "j":
		*at++
	case "pgup":
		*at -= m.room()
	case "pgdown":
		*at += m.room()
	case "home", "g":
		*at = 0
	case "end", "G":
		*at = n
	}
	*at = max(0, min(*at, n-1))
}

// pressPage applies a key to the page, and reports whether it means something there.
func (m *Model) pressPage(key string) bool {
	switch key {
	case "esc", "enter", "?", "backspace":
		m.page = nil
	case "q":
		return false
	default:
		m.move(key, &m.page.first, max(1, len(m.page.lines)-m.room()+1))
	}
	return true
}

func (m *Model) pressEditing(k key) {
	switch k.name {
	case "enter":
		m.editing = m.textWrong != ""
	case "esc":
		m.editing = false
		m.edit("")
	case "backspace":
		if r := []rune(m.text); len(r) > 0 {
			m.edit(string(r[:len(r)-1]))
		}
	case "ctrl+u":
		m.edit("")
	default:
		m.edit(m.text + k.text)
	}
}

// mostText is the most characters of a filter.
const mostText = 200

// edit sets the filter's text. A text that is no filter leaves the filter as it was.
func (m *Model) edit(text string) {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
	if r := []rune(text); len(r) > mostText {
		text = string(r[:mostText])
	}
	m.text, m.textWrong = text, ""
	filter, err := live.ParseFilter(text)
	if err != nil {
		m.textWrong = err.Error()
		return
	}
	m.filter = filter
	m.arrange()
}

// ofContainer shows the connections of the selected container.
func (m *Model) ofContainer() {
	if m.table != containersTable || m.rows() == 0 {
		return
	}
	name := m.shown.Containers[m.cursor[m.table]].Name
	m.table = connectionsTable
	m.edit("container:" + name)
}

// explain asks the daemon about the selected row.
func (m *Model) explain() command {
	if m.rows() == 0 || m.table == changesTable {
		return nil
	}
	at := m.cursor[m.table]
	subject := ""
	if m.table == containersTable {
		subject = m.shown.Containers[at].Name
	} else {
		subject = subjectOf(&m.shown.Connections[at])
	}
	m.page = &page{title: subject, lines: []string{"asking the daemon ..."}}
	return func() any {
		e, err := m.daemon.Explain(subject)
		return explained{subject, e, err}
	}
}

// explained shows an explanation, unless the user has left its page.
func (m *Model) explained(x explained) {
	if m.page == nil || m.page.title != x.subject {
		return
	}
	text := m.opts.Explain(x.explanation, m.width)
	if x.err != nil {
		text = "no explanation: " + x.err.Error()
	}
	m.page.lines = m.wrap(text)
}
