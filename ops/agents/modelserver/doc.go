// Package modelserver imitates the servers of models in the ways in which they differ. A [Behaviour]
// is one way: it names the maker that shows it and the source that it is known by. The model behind
// it solves one [Task] and sees nothing but the messages, so that a test of a whole agent passes
// where the agent gets along with the behaviour.
//
// requests.go has what servers refuse, answers.go how they write an answer, calls.go what models do
// with calls, breaks.go how an answer breaks off.
package modelserver

// FromMemory is the source of a behaviour that no document was found for.
const FromMemory = "from memory"

// The task that every behaviour is tried with.
const (
	// Task is the user's message.
	Task = "Write the two words of the sign into done.txt, then finish."
	// File is what is written, in the directory that the system prompt names.
	File = "done.txt"
	// Content is the file's text. It has two lines: some models break them.
	Content = "it works\nwell\n"
	// Farewell is the text of the answer that ends the task.
	Farewell = "The file done.txt has both lines."
)

// Past is what a conversation holds before the task comes.
type Past string

// The pasts of conversations.
const (
	NoPast       Past = ""
	Picture      Past = "a picture"
	Pointer      Past = "a pointer of git-lfs that is named .png"
	WrongType    Past = "a JPEG that is named .png"
	TwoMessages  Past = "two messages of the user in a row"
	Answered     Past = "an answer of the agent, and a run without a message"
	OddNames     Past = "calls of functions.terminal and of a tool without a name"
	OddIDs       Past = "a call with an id that only its maker knows"
	Called       Past = "a call, its result and then the task"
	Thought      Past = "a call with thoughts"
	EmptyAnswers Past = "an answer without a text"
	PictureTool  Past = "a picture in a tool's result"
)

// Behaviour is one way in which a server differs.
type Behaviour struct {
	// Name says what the server does.
	Name string
	// API is what it speaks, "" for chat completions; ChatOnly that no other one has it.
	API      API
	ChatOnly bool
	// Asked is the API that the settings lead to, where it is not API. Elsewhere is what the server says
	// then; nil is a page that is not found.
	Asked     API
	Elsewhere *Refusal
	// Maker is the server or vendor that it imitates.
	Maker string
	// Source is an address where the behaviour is described, or FromMemory.
	Source string
	// Past is what the conversation holds before the task.
	Past Past
	// Refuse says what the server refuses a request with; nil accepts all.
	Refuse func(*Request) *Refusal
	// Answer writes an answer; nil writes it as OpenAI does.
	Answer func(*Reply)
	// MaxTokens and Temperature are set in the agent's settings where they are not 0.
	MaxTokens   int
	Temperature float64
	// Effort is set likewise.
	Effort string
	// Timeout is the agent's for a call, in seconds; 0 is its default.
	Timeout int
	// Text makes the model end with a text in the place of a call of finish.
	Text bool
	// Two makes the model write other.txt beside the file.
	Two bool
}

// All returns the behaviours.
func All() []Behaviour {
	var all []Behaviour
	for _, list := range [][]Behaviour{
		everywhere(parameters()), outputs(), everywhere(orders()), everywhere(pictures()), everywhere(pasts()),
		refusals(), everywhere(withoutCalls()), forms(), streams(), numbers(), everywhere(arguments()),
		everywhere(names()), everywhere(written()), everywhere(thoughts()), everywhere(broken()), errorsWithin(),
		everywhere(limits()), everywhere(busy()), inMessages(), inResponses(), otherAPIs(),
	} {
		all = append(all, list...)
	}
	return all
}
