// Package docs runs the commands of documents, and checks the documents' form.
//
// A document's fenced blocks with the language "console" are sessions:
//
//	$ sudo scon status            a command on the machine
//	express: active, ...          its output
//	other$ curl 192.0.2.2:8080    a command on another machine, beyond the uplink
//	> --silent                    its second line
//
// All sessions of a document run in order on a machine of their own, made of namespaces
// (test/bed/machine), with a real Docker engine and with SCON installed as a package
// installs it. Each command is a shell of its own. It has to succeed and to print what
// the document shows:
//
//   - a number stands for any number, 0 only for 0, and a bar for any bar; an address is
//     literal
//   - "..." stands for the rest of a word or line, and as a line for any lines
//   - the amount of white space does not matter, and lines about progress are left out
//
// A command that only looks (see looks) is repeated until it prints that. One that ends
// in "&" is left running.
//
// A block that cannot run here has a comment before it that says why:
//
//	<!-- not run: REASON -->
//	<!-- run by FILE: REASON -->
//
// FILE is a test that contains each command of the block.
package docs
