// Package fault names the points where a process may be killed on purpose.
// The code between two effects calls At; a program built with the tag "drills"
// dies there when ops/drills says so. In every other build At is empty.
package fault
