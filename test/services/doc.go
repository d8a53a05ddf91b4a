// Package services tests the three services beside each other: each starts, dies
// and restarts on its own.
package services
