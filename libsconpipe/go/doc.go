// Package sconpipe exchanges bulk data with processes of other containers of this
// machine through SCON's pipe: connections and listeners as package net has them,
// over libsconpipe, which is built into the program. It takes cgo.
//
// The way of a call:
//
//  1. Read, Write and Accept ask the library, which does not wait.
//  2. What has to wait arms its socket in the one set of sockets that a goroutine
//     waits for, and sleeps until that tells it, the deadline is over, or the
//     socket is closed. Then it asks again.
//
// Go does not see that a source of the library has changed, for these are in
// another folder: after a change "go clean -cache" has it built again, else it may
// speak another version of the protocol than the broker.
package sconpipe
