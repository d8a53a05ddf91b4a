// Package man writes the man pages of commands, from the same texts as --help, and of
// the settings, from the comments in the file of settings.
package man

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/state"
)

// Section is the section of all commands: they administer a machine.
const Section = "8"

// Pages writes a page for each command below root that include accepts, and for root
// itself if it does. The pages' date is SOURCE_DATE_EPOCH, or now.
func Pages(root *cobra.Command, dir string, include func(*cobra.Command) bool) error {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	return pages(root, dir, include)
}

func pages(cmd *cobra.Command, dir string, include func(*cobra.Command) bool) error {
	if cmd.Hidden || cmd.IsAdditionalHelpTopicCommand() {
		return nil
	}
	for _, c := range cmd.Commands() {
		if err := pages(c, dir, include); err != nil {
			return err
		}
	}
	if !include(cmd) {
		return nil
	}
	cmd.DisableAutoGenTag = true
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	var page bytes.Buffer
	date := date()
	header := doc.GenManHeader{Title: strings.ToUpper(name), Section: Section, Source: "SCON", Manual: "SCON", Date: &date}
	if err := doc.GenMan(cmd, &header, &page); err != nil {
		return fmt.Errorf("write the man page of %s: %w", cmd.CommandPath(), err)
	}
	return os.WriteFile(filepath.Join(dir, name+"."+Section), []byte(whole(cmd, page.String())), 0o644)
}

// seeAlso heads the last section of cobra's pages.
const seeAlso = ".SH SEE ALSO\n"

// whole adds to cobra's page of a command what --help does not have: the commands of the
// root by their groups, its files, the exit status, and the pages beside it.
func whole(cmd *cobra.Command, page string) string {
	page, links, _ := strings.Cut(page, seeAlso)
	if !cmd.HasParent() {
		page = strings.Replace(page, `\fBscon [flags]\fP`, `\fBscon\fP [\fB--socket\fP \fIpath\fP] \fIcommand\fP [\fIargument\fP ...]`, 1)
		page += commands(cmd) + paragraphs("FILES", files) + paragraphs("ENVIRONMENT", environment)
	}
	page += paragraphs("EXIT STATUS", exits)
	also := strings.TrimSpace(links)
	for _, name := range append(siblings(cmd), "scon.yaml(5)") {
		also += fmt.Sprintf(", \\fB%s\\fP", name)
	}
	return page + seeAlso + strings.TrimPrefix(also, ", ") + "\n"
}

// paragraph is a tagged one.
type paragraph struct{ tag, text string }

var (
	files = []paragraph{
		{config.DefaultPath, "settings of the services, scon.yaml(5)"},
		{state.DefaultDir, "sockets, locks and logs of the services that run; --state-dir names another one"},
		{"/sys/fs/bpf/scon", "the programs and tables that stay in force when the daemon ends"},
		{"/usr/share/doc/scon", "README.md, and docs with a tutorial and guides"},
	}
	environment = []paragraph{
		{"NO_COLOR", "if it is set, nothing is colored. Nothing is either if the output is no terminal, or with TERM=dumb"},
		{"SCON_PIPE_SOCKET", "the socket of the pipe's broker for scon run"},
	}
	exits = []paragraph{
		{fmt.Sprint(cli.ExitOK), "done"},
		{fmt.Sprint(cli.ExitFailed), "it has failed; the last line on stderr says why, and what to do"},
		{fmt.Sprint(cli.ExitUsage), "the command line is wrong"},
	}
)

// paragraphs returns a section of tagged paragraphs.
func paragraphs(title string, all []paragraph) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n.SH %s\n", title)
	for _, p := range all {
		fmt.Fprintf(&b, ".TP\n.B %s%s", roff([]string{p.tag}), roff([]string{p.text}))
	}
	return b.String()
}

// commands returns the section of the root's commands, as its help groups them.
func commands(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("\n.SH COMMANDS\n")
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, ".SS %s", roff([]string{strings.TrimSuffix(g.Title, ":")}))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && !c.Hidden {
				fmt.Fprintf(&b, ".TP\n.B %s%s", roff([]string{c.Name()}), roff([]string{c.Short}))
			}
		}
	}
	return b.String()
}

// siblings returns the pages of the commands in the same group of the help.
func siblings(cmd *cobra.Command) (names []string) {
	if !cmd.HasParent() {
		return nil
	}
	for _, c := range cmd.Parent().Commands() {
		if c != cmd && c.GroupID == cmd.GroupID && !c.Hidden && c.Name() != "help" {
			names = append(names, strings.ReplaceAll(c.CommandPath(), " ", "-")+"("+Section+")")
		}
	}
	return names
}

// date returns the date of the pages.
func date() time.Time {
	var seconds int64
	if _, err := fmt.Sscan(os.Getenv("SOURCE_DATE_EPOCH"), &seconds); err != nil {
		return time.Now()
	}
	return time.Unix(seconds, 0).UTC()
}

// Settings writes scon.yaml(5) from the file of settings: a paragraph for each key with
// its default and its comment, and a section for each outermost key that groups others.
func Settings(yaml []byte, dir string) error {
	var page strings.Builder
	fmt.Fprintf(&page, ".TH SCON.YAML 5 %q SCON SCON\n", date().Format("Jan 2006"))
	page.WriteString(".SH NAME\nscon.yaml \\- settings of the services of SCON\n" +
		".SH SYNOPSIS\n.I /etc/scon/scon.yaml\n.SH DESCRIPTION\n")
	var comment []string
	var path [8]string // the keys above a line's, by depth
	for n, line := range strings.Split(string(yaml), "\n") {
		text := strings.TrimLeft(line, " ")
		depth := (len(line) - len(text)) / 2
		key, value, isKey := strings.Cut(text, ":")
		switch {
		case text == "" && len(comment) > 0: // about the whole file
			page.WriteString(roff(comment) + ".SH SETTINGS\n")
			comment = nil
		case text == "":
		case strings.HasPrefix(text, "#"):
			comment = append(comment, strings.TrimSpace(text[1:]))
		case !isKey || depth >= len(path):
			return fmt.Errorf("scon.yaml:%d: %q is no key with a value", n+1, text)
		default:
			path[depth] = key
			if depth == 0 && value == "" {
				fmt.Fprintf(&page, ".SS %s", roff([]string{key}))
			} else {
				fmt.Fprintf(&page, ".TP\n.B %s", roff([]string{strings.Join(path[:depth+1], ".") + ":" + value}))
			}
			page.WriteString(roff(comment))
			comment = nil
		}
	}
	page.WriteString(".SH SEE ALSO\n.BR scon (8)\n")
	return os.WriteFile(filepath.Join(dir, "scon.yaml.5"), []byte(page.String()), 0o644)
}

// roff returns lines as roff prints them as they are.
func roff(lines []string) string {
	var all strings.Builder
	for _, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			all.WriteString(`\&`)
		}
		all.WriteString(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line) + "\n")
	}
	return all.String()
}
