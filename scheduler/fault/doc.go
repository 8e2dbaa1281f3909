// Package fault names the points where a drill may kill the process. The code between two
// effects calls At. A program built with the tag "drills" dies there when ops/e2e asks for
// it. In every other build At is empty.
package fault
